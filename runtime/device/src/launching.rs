//! Launching: submits launches to device queues, returns completions, and stops running launches.

use crate::error::SubmitError;
use crate::record::{Completion, LaunchRecord};
use crate::report::LaunchReport;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};

/// Runs launches. Every device implements [`Launching::submit`], [`Launching::next_completion`] and
/// [`Launching::store_epoch`].
///
/// Every launch that [`Launching::submit`] accepts gets exactly one completion, in submission order
/// within its queue, even if the device is lost. A launch occupies its slot of the device queue
/// until its completion is taken.
pub trait Launching {
    /// Announces an epoch word before launches carry it, or share kernels with launches that carry
    /// it. The device decides now where all these launches read the word. Not needed for a task
    /// that shares no kernel with other tasks.
    fn watch_epoch(&mut self, _word: DeviceOffset) {}

    /// Sets an epoch word, so that queued launches of older epochs exit. Never waits.
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch);

    /// Puts a launch into a device queue. `params` is the parameter block; see
    /// [`LaunchRecord::address_slots`].
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError>;

    /// Aborts a launch that is in flight and the oldest of its queue. Running blocks stop wherever
    /// they are, the others do not start. The launch completes as
    /// [`LaunchStatus::Aborted`](crate::LaunchStatus::Aborted), unless it has already ended. Only
    /// called if [`DeviceInfo::can_abort`](crate::DeviceInfo::can_abort). Never waits.
    fn abort(&mut self, _queue: QueueId, _launch: LaunchId) {}

    /// Stops running blocks of a launch whose epoch was raised, if that is faster than waiting for
    /// their end. `blocks` is the number of more urgent blocks that need compute units; at most
    /// that many compute units are stopped. This is a hint: [`Launching::submit`] does the same
    /// later, for the launch that it submits. Never waits.
    fn interrupt(&mut self, _queue: QueueId, _launch: LaunchId, _blocks: u64) {}

    /// Kills the process that runs a launch, and everything else in it, because the launch hangs.
    /// Returns false if that process is the whole device.
    fn kill(&mut self, _launch: LaunchId, _why: &str) -> bool {
        false
    }

    /// The next completion. Within a queue they come in submission order, across queues in any
    /// order.
    fn next_completion(&mut self) -> Option<Completion>;

    /// Takes the report of a launch whose completion was taken: why it failed, what it printed.
    /// `None` if there is nothing to report or the report was dropped.
    fn report(&mut self, _launch: LaunchId) -> Option<LaunchReport> {
        None
    }
}
