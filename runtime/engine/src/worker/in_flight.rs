//! Launches on the device.

use atoll_core::{Epoch, QueueId, TaskId};

/// A launch in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) queue: QueueId,
    pub(super) epoch: Epoch,
}
