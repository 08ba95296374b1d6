//! What happens to a ledger.

use crate::ask::Ask;
use crate::capacity::Capacity;
use crate::ids::{Epoch, Holder, LeaseId};
use atoll_core::DeviceId;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request for a lease. Answered by [`Answer::Granted`](crate::Answer::Granted).
    Grant(Ask),
    /// The holder extends its lease by its time to live, from now. Answered by `Granted`.
    Renew {
        /// The lease.
        lease: LeaseId,
        /// Its epoch as the holder knows it.
        epoch: Epoch,
        /// The caller.
        holder: Holder,
    },
    /// Another holder takes a lease over, for example a replica that was started anew: the lease gets
    /// a new epoch. Whether the caller may do that, the server has checked. Answered by `Granted`.
    TakeOver {
        /// The lease.
        lease: LeaseId,
        /// Its epoch as the caller knows it, so that of two that take over one wins.
        epoch: Epoch,
        /// The new holder.
        holder: Holder,
    },
    /// The holder needs its lease no more. Answered by [`Answer::Done`](crate::Answer::Done), also
    /// if it has ended before.
    Release {
        /// The lease.
        lease: LeaseId,
        /// Its epoch as the holder knows it.
        epoch: Epoch,
        /// The caller.
        holder: Holder,
    },
    /// The instance of a lease that was just granted cannot be created, or the lease not be written
    /// down. The lease ends and its key is free again, because its holder was told of no grant.
    Unplaced {
        /// The lease.
        lease: LeaseId,
    },
    /// The daemon cannot keep its promise any more: the lease ends, and its key is remembered.
    Revoke {
        /// The lease.
        lease: LeaseId,
    },
    /// A takeover could not be written down. The lease has the epoch and the holder again that it had
    /// before, since the new holder was told nothing.
    NotTaken {
        /// The lease.
        lease: LeaseId,
        /// Its epoch before the takeover.
        epoch: Epoch,
        /// Its holder before.
        holder: Holder,
    },
    /// A device is there, or has another capacity than before. Leases that do not fit any more go to
    /// other devices, the oldest first, unless they were asked for on this one; those that fit
    /// nowhere are revoked.
    Device {
        /// The device.
        device: DeviceId,
        /// What it can hold.
        capacity: Capacity,
    },
    /// A device is gone. Its leases go to other devices, or are revoked.
    Lost {
        /// The device.
        device: DeviceId,
    },
    /// A device gets no new leases, or gets them again. Those that it has stay.
    Drained {
        /// The device.
        device: DeviceId,
        /// Whether it gets none.
        is_drained: bool,
    },
    /// Time has passed; see [`Ledger::wakeup`](crate::Ledger::wakeup).
    Tick,
}
