//! What follows from an event.

use crate::ids::{Epoch, Holder, LeaseId, RequestKey};
use crate::ledger::Kept;
use crate::refusal::Refusal;
use atoll_core::packing::Rect;
use atoll_core::{DeviceId, Nanos};

/// What the caller does, in order. A `Keep` or `End` is durable before what follows is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write down a lease, in place of what was written for it before, and with it the highest number
    /// so far, which outlives the lease.
    Keep {
        /// The lease.
        kept: Box<Kept>,
        /// The highest number that was used.
        last: u64,
    },
    /// Write down the key of an ended lease in place of the lease.
    End {
        /// The lease.
        lease: LeaseId,
        /// Its key.
        key: RequestKey,
    },
    /// Remove the key of an ended lease.
    Forget(RequestKey),
    /// Create or change the instance of a lease: it gets these compute units of this device.
    Place {
        /// The lease.
        lease: LeaseId,
        /// Its device.
        device: DeviceId,
        /// Its part of time and compute units, in hundredths.
        rect: Rect,
    },
    /// Remove the instance of a lease. Whether its requests in flight finish is up to the caller.
    Remove {
        /// The lease.
        lease: LeaseId,
        /// Why.
        ending: Ending,
    },
    /// Answer the event.
    Answer(Answer),
}

/// The answer to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lease is granted, renewed or taken over.
    Granted(Grant),
    /// It is done.
    Done,
    /// It is refused.
    Refused(Refusal),
}

/// A lease as its holder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch. Instances and requests name it, so that an old holder is told apart.
    pub epoch: Epoch,
    /// Its holder.
    pub holder: Holder,
    /// Its device.
    pub device: DeviceId,
    /// When it ends if it is not renewed, by the daemon's clock.
    pub expires: Nanos,
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its holder released it.
    Released,
    /// It was not renewed in time.
    Expired,
    /// Its device is gone or has become smaller, and no other has room; or the daemon cannot keep its
    /// promise for another reason.
    Revoked,
    /// Its instance could not be created.
    Unplaced,
}
