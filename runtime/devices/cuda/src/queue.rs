//! A device queue: a stream, and the slots of the launches it may hold.

use super::bound::Bound;
use super::slot::{EvictedWords, Slot};
use atoll_cuda::{Context, CudaError, Event, HostWords, Partition, Stream};
use std::sync::Arc;

/// The engine's side of a device queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) stream: Stream,
    /// Those that no launch has.
    slots: Vec<Slot>,
    /// Launches that wait for one that follows at once.
    pub(super) held: Vec<Bound>,
    /// Launches whose completion was not taken yet, with those that are held.
    in_flight: u32,
    capacity: u32,
}

impl Queue {
    /// On a partition, where there is one.
    pub(super) fn new(
        context: &Arc<Context>,
        partition: Option<&Arc<Partition>>,
        priority: i32,
        capacity: u32,
    ) -> Result<Queue, CudaError> {
        let words = Arc::new(HostWords::new(context, capacity as usize)?);
        let slot = |index| {
            let (began, ended) = (Event::new(context)?, Event::new(context)?);
            Ok(Slot { began, ended, evicted: EvictedWords::new(&words, index) })
        };
        let slots = (0..capacity as usize).map(slot).collect::<Result<_, CudaError>>()?;
        let stream = match partition {
            None => Stream::new(context, priority)?,
            Some(partition) => Stream::in_partition(partition, priority)?,
        };
        Ok(Queue { stream, slots, held: Vec::new(), in_flight: 0, capacity })
    }

    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.capacity
    }

    /// Whether a completion is still to be taken.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// # Panics
    /// If there is no room.
    pub(super) fn take_slot(&mut self) -> Slot {
        self.slots.pop().expect("a slot for each launch that there is room for")
    }

    pub(super) fn give_slot(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// A launch was taken.
    pub(super) fn begun(&mut self) {
        self.in_flight += 1;
    }

    /// The completions of some were taken, with the slot that they had.
    pub(super) fn ended(&mut self, launches: usize, slot: Option<Slot>) {
        self.in_flight -= launches as u32;
        self.slots.extend(slot);
    }
}
