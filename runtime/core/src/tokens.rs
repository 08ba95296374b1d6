//! The place where what clients have bought of a device's time is kept.

use crate::ids::{ClientId, LaneId, Nanos};

/// What clients may use of a device's time. No client has a share yet, so all of them may issue at
/// any time; the scheduler asks here before every launch, so that shares need no other place.
#[derive(Debug, Default)]
pub(crate) struct TokenLedger;

impl TokenLedger {
    /// Whether a client may issue launches in a lane now.
    pub(crate) fn may_issue(&self, _now: Nanos, _lane: LaneId, _client: ClientId) -> bool {
        true
    }

    /// When the first of the clients that may not issue may again: the scheduler then asks anew.
    /// Nobody is kept from it.
    pub(crate) fn next_grant(&self) -> Option<Nanos> {
        None
    }
}
