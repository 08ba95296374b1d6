//! Interruption: killing running blocks so that more urgent ones find room.
//!
//! A driver that can kill blocks kills all of the process. So they are only killed while each
//! launch in flight reports its progress and may run blocks again. A launch whose blocks were
//! killed ends without them; its evicted word, which is set before, makes the engine launch it
//! again, and the progress map tells which blocks are left. A launch that was marked but had ended
//! already is launched again for nothing.

use crate::device::StreamDevice;
use crate::driver::Driver;
use crate::slot::Slot;
use atoll_core::{LaunchId, QueueId};

impl<D: Driver> StreamDevice<D> {
    /// Records where a launch's blocks can be declared killed.
    pub(crate) fn mark_interruptible(&mut self, queue: QueueId, launch: LaunchId, slot: &Slot<D>) {
        if !self.can_reset {
            return;
        }
        let found = self.queue(queue).in_flight.iter_mut().find(|in_flight| in_flight.launch == launch);
        if let Some(in_flight) = found {
            in_flight.interruptible = Some(slot.words.clone());
        }
    }

    /// Kills running blocks if `launch`, whose epoch was raised, is in flight, and every launch in
    /// flight may run its blocks again.
    pub(crate) fn interrupt_all(&self, queue: QueueId, launch: LaunchId) {
        let of_queue = self.queues.get(queue.0 as usize).and_then(Option::as_ref);
        let is_there = of_queue.is_some_and(|queue| queue.in_flight.iter().any(|one| one.launch == launch));
        let all = || self.queues.iter().flatten().flat_map(|queue| &queue.in_flight);
        if !self.can_reset || !is_there || all().any(|one| one.interruptible.is_none()) {
            return;
        }
        all().filter_map(|one| one.interruptible.as_ref()).for_each(|words| words.evict());
        if let Err(error) = D::reset_blocks(&self.context) {
            tracing::error!(%error, "cannot kill running blocks; they run to their end");
        }
    }
}
