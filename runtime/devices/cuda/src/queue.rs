//! A device queue: a stream, and the slots of the launches that it holds.

use super::bound::Bound;
use super::slot::{LaunchWords, Slot, WORDS};
use atoll_cuda::{Context, CudaError, Event, HostWords, Partition, Stream};
use std::sync::Arc;

/// The engine's side of a device queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) stream: Stream,
    /// Free slots.
    slots: Vec<Slot>,
    /// Launches held back because the next one follows at once.
    pub(super) held: Vec<Bound>,
    /// Launches whose completion has not been taken, including held ones.
    in_flight: u32,
    capacity: u32,
}

impl Queue {
    /// A queue on a partition, if there is one.
    pub(super) fn new(
        context: &Arc<Context>,
        partition: Option<&Arc<Partition>>,
        priority: i32,
        capacity: u32,
    ) -> Result<Queue, CudaError> {
        let words = Arc::new(HostWords::new(context, capacity as usize * WORDS)?);
        let slot = |index| {
            let (began, ended) = (Event::new(context)?, Event::new(context)?);
            Ok(Slot { began, ended, words: LaunchWords::new(&words, index) })
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

    /// Whether a completion has not been taken yet.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// # Panics
    /// If no slot is free.
    pub(super) fn take_slot(&mut self) -> Slot {
        self.slots.pop().expect("`has_room` was checked, so a slot is free")
    }

    pub(super) fn give_slot(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Counts a launch that was accepted.
    pub(super) fn begun(&mut self) {
        self.in_flight += 1;
    }

    /// Records that completions were taken, and frees the slot of their launches.
    pub(super) fn ended(&mut self, launches: usize, slot: Option<Slot>) {
        self.in_flight -= launches as u32;
        self.slots.extend(slot);
    }
}
