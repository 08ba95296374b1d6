//! Requests to a daemon, and why one fails.

use atoll_client::{LeaseHold, LeaseSpec};

/// A request to a daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Report the capacity of the devices.
    Capacity,
    /// Grant a lease.
    Grant(LeaseSpec),
    /// Renew a lease.
    Renew(LeaseHold),
    /// Release a lease.
    Release(LeaseHold),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status of HTTP; `None` if no answer arrived.
    pub status: Option<u16>,
    /// The reason, as the daemon or the connection states it.
    pub message: String,
}
