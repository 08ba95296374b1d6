//! Errors of requests about leases.

use crate::identity::Denial;
use crate::instances::InstanceError;
use atoll_lease::{BadAsk, Refusal};
use atoll_store::StoreError;

/// Why a request about leases is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The value of a field is out of range.
    #[error("{0}")]
    Bad(String),
    #[error("there is no function `{0}`; load or deploy it on this daemon first")]
    NoFunction(String),
    #[error("function `{function}` {reason}")]
    NotReady { function: String, reason: String },
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The device cannot provide the share in addition to the shares of tenants and of instances
    /// without a lease.
    #[error("{device} has no room for the lease now: {reason}; try again later, or ask for less")]
    Full { device: String, reason: String },
    #[error("the instance of the lease cannot be created: {0}")]
    Instance(InstanceError),
    #[error("cannot write the lease: {0}; nothing is granted until it is written, and a released lease has ended")]
    Store(#[from] StoreError),
    #[error("this daemon grants no leases, because it has no store to keep them in; start it without --no-control")]
    NoStore,
    #[error("internal error: a request panicked; please report this bug")]
    Panicked,
}

impl From<BadAsk> for LeaseError {
    fn from(error: BadAsk) -> LeaseError {
        LeaseError::Bad(error.to_string())
    }
}
