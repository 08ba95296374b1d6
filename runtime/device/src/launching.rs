//! Launching: the way of launches into device queues and of completions out of them, and what stops
//! them.

use crate::error::SubmitError;
use crate::record::{Completion, LaunchRecord};
use crate::report::LaunchReport;
use atoll_core::{DeviceOffset, Epoch, LaunchId, QueueId};

/// Runs launches. Required: [`Launching::submit`], [`Launching::next_completion`] and
/// [`Launching::store_epoch`].
///
/// Every launch that [`Launching::submit`] took gets exactly one completion, in submission order
/// within its queue, also when the device is lost. A launch holds its place in the device queue
/// until its completion was taken.
pub trait Launching {
    /// Launches will carry this epoch word, or share their kernels with some that do: where they
    /// look for it is settled now, and the same for all. Not needed for a task whose kernels run
    /// alone.
    fn watch_epoch(&mut self, _word: DeviceOffset) {}

    /// Sets an epoch word; queued launches of older epochs then leave. Never waits.
    fn store_epoch(&self, word: DeviceOffset, epoch: Epoch);

    /// Puts a launch into a device queue. `params` is the parameter block; see
    /// [`LaunchRecord::address_slots`].
    fn submit(&mut self, queue: QueueId, record: &LaunchRecord, params: &[u8]) -> Result<(), SubmitError>;

    /// Ends a launch that is in flight and the oldest of its queue: blocks that run stop wherever
    /// they are, the others do not start, and it completes as
    /// [`LaunchStatus::Aborted`](crate::LaunchStatus::Aborted), unless it was over before that.
    /// Only asked of devices that can; never waits.
    fn abort(&mut self, _queue: QueueId, _launch: LaunchId) {}

    /// Stops running blocks of a launch whose epoch was raised, where waiting for their end would
    /// take longer. `blocks` is how many more urgent blocks want a compute unit; no more compute
    /// units are stopped than that. A hint that [`Launching::submit`] repeats for its own launch:
    /// it saves the time between an eviction and the launch that it is for. Never waits.
    fn interrupt(&mut self, _queue: QueueId, _launch: LaunchId, _blocks: u64) {}

    /// Ends the process that has a launch, because that launch hangs, with everything else that it
    /// runs; false where that is the whole device.
    fn kill(&mut self, _launch: LaunchId, _why: &str) -> bool {
        false
    }

    /// The next completion, in no particular order across queues, in submission order within one.
    fn next_completion(&mut self) -> Option<Completion>;

    /// Takes the report of a launch whose completion was taken: why it failed, what it printed.
    /// `None` where there is nothing to report, or the launch was too long ago.
    fn report(&mut self, _launch: LaunchId) -> Option<LaunchReport> {
        None
    }
}
