//! Events that a ledger handles.

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
    /// Another holder takes a lease over, for example a replica that was restarted. The lease gets
    /// a new epoch. The server has checked that the caller may do it. Answered by `Granted`.
    TakeOver {
        /// The lease.
        lease: LeaseId,
        /// Its epoch as the caller knows it. If two callers take over with the same epoch, the
        /// first one succeeds.
        epoch: Epoch,
        /// The new holder.
        holder: Holder,
    },
    /// The holder releases its lease. Answered by [`Answer::Done`](crate::Answer::Done), also if
    /// the lease has already ended.
    Release {
        /// The lease.
        lease: LeaseId,
        /// Its epoch as the holder knows it.
        epoch: Epoch,
        /// The caller.
        holder: Holder,
    },
    /// The instance of a new lease cannot be created, or its record cannot be written. The lease
    /// ends, and its key can be used again, because the holder has received no grant.
    Unplaced {
        /// The lease.
        lease: LeaseId,
    },
    /// The daemon can no longer provide the resources of the lease. The lease ends, and its key is
    /// remembered.
    Revoke {
        /// The lease.
        lease: LeaseId,
    },
    /// The record of a takeover could not be written. The lease gets its earlier epoch and holder
    /// back. The new holder has received no answer.
    NotTaken {
        /// The lease.
        lease: LeaseId,
        /// Its epoch before the takeover.
        epoch: Epoch,
        /// Its holder before the takeover.
        holder: Holder,
    },
    /// A device is new, or its capacity changed. Leases that no longer fit move to other devices,
    /// the oldest first, unless the request named this device. A lease that cannot move is revoked.
    Device {
        /// The device.
        device: DeviceId,
        /// Its new capacity.
        capacity: Capacity,
    },
    /// A device was lost. Its leases move to other devices, or are revoked.
    Lost {
        /// The device.
        device: DeviceId,
    },
    /// A device stops or resumes to get new leases. Its present leases stay.
    Drained {
        /// The device.
        device: DeviceId,
        /// True if it gets no new leases.
        is_drained: bool,
    },
    /// Time has passed; see [`Ledger::wakeup`](crate::Ledger::wakeup).
    Tick,
}
