//! Interruption: kills running blocks to make room for more urgent ones.
//!
//! A driver that can kill blocks kills all blocks of the process. So blocks are killed only if the
//! epoch of every launch in flight was raised, and every launch reports its progress and may run
//! blocks again. Before the kill, the evicted word of each launch is set. A launch whose blocks
//! were killed ends without them; because of its evicted word the engine launches it again, and the
//! progress map tells which blocks are left. A launch that had ended just before is launched again
//! without need.

use crate::device::StreamDevice;
use crate::driver::{Driver, DriverError};
use crate::launch::Bound;
use crate::queue::{InFlight, Interruptible};
use crate::slot::Slot;
use atoll_core::{LaunchId, QueueId};

impl<D: Driver> StreamDevice<D> {
    /// Records the words in which a launch can be marked as evicted, and the epoch under which it
    /// runs.
    pub(crate) fn mark_interruptible(&mut self, queue: QueueId, bound: &Bound<D>, slot: &Slot<D>) {
        if !self.can_reset || !bound.may_be_killed {
            return;
        }
        let found = self.queue(queue).in_flight.iter_mut().find(|in_flight| in_flight.launch == bound.launch);
        if let Some(in_flight) = found {
            let (words, epoch_word, epoch) = (slot.words.clone(), bound.task, bound.epoch);
            in_flight.interruptible = Some(Interruptible { words, epoch_word, epoch, is_killed: false });
        }
    }

    /// Kills running blocks if `launch` is in flight and may still have some, and if every launch
    /// in flight was told to exit and may run its blocks again.
    pub(crate) fn interrupt_all(&mut self, queue: QueueId, launch: LaunchId) {
        let of_queue = self.queues.get(queue.0 as usize).and_then(Option::as_ref);
        let found = of_queue.and_then(|queue| queue.in_flight.iter().find(|one| one.launch == launch));
        let is_due = found.and_then(|one| one.interruptible.as_ref()).is_some_and(|one| !one.is_killed);
        let mut all = self.queues.iter().flatten().flat_map(|queue| &queue.in_flight);
        if !self.can_reset || !is_due || !all.all(|one| self.may_be_killed(one)) {
            return;
        }
        // A driver may write words by a kernel, which would be killed as well.
        if self.transferred(D::synchronize(&self.service)).is_err() {
            return;
        }
        let all = || self.queues.iter().flatten().flat_map(|queue| &queue.in_flight);
        all().filter_map(|one| one.interruptible.as_ref()).for_each(|one| one.words.evict());
        match D::reset_blocks(&self.context) {
            Ok(()) => {
                let all = self.queues.iter_mut().flatten().flat_map(|queue| &mut queue.in_flight);
                all.filter_map(|one| one.interruptible.as_mut()).for_each(|one| one.is_killed = true);
            }
            Err(error) if error.is_device_lost() => self.mark_lost(&error.fault()),
            Err(error) => tracing::error!(%error, "cannot kill running blocks; they run to their end"),
        }
    }

    /// Whether a launch may run its blocks again, and its epoch was raised.
    fn may_be_killed(&self, one: &InFlight<D>) -> bool {
        let Some(Interruptible { epoch_word, epoch, .. }) = &one.interruptible else { return false };
        self.epochs.value(*epoch_word).is_some_and(|word| epoch.is_raised_by(word))
    }
}
