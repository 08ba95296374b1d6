//! The ledger of device time that clients may use.

use crate::ids::{ClientId, LaneId, Nanos};

/// The device time that each client may use. Shares are not implemented: every client may issue at
/// any time. The scheduler consults the ledger before every launch, so shares can be added in this
/// file alone.
#[derive(Debug, Default)]
pub(crate) struct TokenLedger;

impl TokenLedger {
    /// Whether a client may issue launches in a lane now.
    pub(crate) fn may_issue(&self, _now: Nanos, _lane: LaneId, _client: ClientId) -> bool {
        true
    }

    /// When the first client that may not issue now may issue again. `None`, since every client
    /// may.
    pub(crate) fn next_grant(&self) -> Option<Nanos> {
        None
    }
}
