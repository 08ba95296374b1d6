//! Actions that the caller of a [`Ledger`](crate::Ledger) carries out after an event.

use crate::ids::{Epoch, Holder, LeaseId, RequestKey};
use crate::ledger::Kept;
use crate::refusal::Refusal;
use atoll_core::packing::Rect;
use atoll_core::{DeviceId, Nanos};

/// An action. The caller carries actions out in order, and makes a `Keep` or `End` durable before
/// it goes on to the next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the record of a lease, in place of its earlier record, and the highest number that was
    /// used so far. The number stays on disk when the lease ends.
    Keep {
        /// The lease.
        kept: Box<Kept>,
        /// The highest number of leases and epochs that was used.
        last: u64,
    },
    /// Replace the record of a lease that ended by its key.
    End {
        /// The lease.
        lease: LeaseId,
        /// Its key.
        key: RequestKey,
    },
    /// Remove the key of an ended lease from disk.
    Forget(RequestKey),
    /// Create or change the instance of a lease, with this area of this device.
    Place {
        /// The lease.
        lease: LeaseId,
        /// Its device.
        device: DeviceId,
        /// Its area: width is time, height is compute units, both in percent of the device.
        rect: Rect,
    },
    /// Remove the instance of a lease. The caller decides whether its requests in flight finish.
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
    /// The release is done.
    Done,
    /// The event is refused.
    Refused(Refusal),
}

/// A lease as its holder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease.
    pub lease: LeaseId,
    /// Its epoch. The holder sends it with each request about the lease, so that a replaced holder
    /// is refused.
    pub epoch: Epoch,
    /// Its holder.
    pub holder: Holder,
    /// Its device.
    pub device: DeviceId,
    /// The time at which it ends unless it is renewed, by the daemon's clock.
    pub expires: Nanos,
}

/// Why a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its holder released it.
    Released,
    /// It was not renewed in time.
    Expired,
    /// Its device was lost or has less capacity, and no other device has room; or
    /// [`Event::Revoke`](crate::Event::Revoke) was sent.
    Revoked,
    /// Its instance could not be created.
    Unplaced,
}
