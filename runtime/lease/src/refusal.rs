//! Why an event is refused.

use crate::ids::{Epoch, LeaseId};
use crate::limits::LEASES_MAX;
use atoll_core::DeviceId;

/// Why a request for or about a lease is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such device.
    #[error("there is no device {}", .0.0)]
    NoDevice(DeviceId),
    /// The device is drained: it gets no new leases.
    #[error("device {} is drained", .0.0)]
    Drained(DeviceId),
    /// No device has room now.
    #[error("no device has room for the lease now; try again later, or ask for less")]
    NoRoom,
    /// The request exceeds every device, even one without other leases.
    #[error("no device is large enough for the lease, even without other leases; ask for less")]
    TooLarge,
    /// There are too many leases.
    #[error("{LEASES_MAX} leases are granted, which is the limit")]
    TooMany,
    /// The key was used for a request of another holder or for other resources.
    #[error("this key was used for another request; choose a new one")]
    KeyUsed,
    /// The lease of this request has ended, or another holder took it over.
    #[error("the lease of this request has ended or was taken over; ask for a new one with a new key")]
    Ended,
    /// There is no such lease, or it is not the caller's.
    #[error("there is no lease {0} of this holder")]
    NoLease(LeaseId),
    /// The lease has a newer epoch: another holder took it over.
    #[error("epoch {given} of lease {lease} is outdated; another holder took it over")]
    Stale {
        /// The lease.
        lease: LeaseId,
        /// The epoch that was given.
        given: Epoch,
    },
}
