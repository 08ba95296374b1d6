//! A device queue: a stream, and the slots of the launches it may hold.

use super::submit::Bound;
use atoll_cuda::{Context, CudaError, Event, HostWords, Partition, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Words in host memory in which blocks that leave say so, one for each of some launches.
#[derive(Clone, Debug)]
pub(super) struct EvictedWords {
    words: Arc<HostWords>,
    first: usize,
}

impl EvictedWords {
    pub(super) fn new(words: &Arc<HostWords>, first: usize) -> EvictedWords {
        EvictedWords { words: words.clone(), first }
    }

    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Where kernels of a launch find its word.
    pub(super) fn address(&self, launch: usize) -> u64 {
        self.words.address() + (self.first + launch) as u64 * 4
    }

    /// Whether a block of a launch left; to be asked once it ended.
    pub(super) fn is_set(&self, launch: usize) -> bool {
        self.words.word(self.first + launch).load(Acquire) != 0
    }

    /// Nothing of so many launches has left.
    pub(super) fn clear(&self, launches: usize) {
        (0..launches).for_each(|launch| self.words.word(self.first + launch).store(0, Release));
    }
}

/// What goes into a stream at once needs on its way: the events around it, and an evicted word for a launch that goes alone.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) began: Event,
    pub(super) ended: Event,
    pub(super) evicted: EvictedWords,
}

impl Slot {
    /// Puts something between the slot's events into a stream.
    pub(super) fn enclose(&self, stream: &Stream, put: impl FnOnce(&Stream) -> Result<(), CudaError>) -> Result<(), CudaError> {
        self.began.record(stream)?;
        put(stream)?;
        match self.ended.record(stream) {
            // It is on its way, and may have faulted by now: whoever asks for the event will hear of it.
            Err(error) if error.is_context_lost() => Ok(()),
            answer => answer,
        }
    }
}

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
