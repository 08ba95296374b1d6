//! A device queue: a stream, and the slots of the launches it may hold.

use atoll_cuda::{Context, CudaError, Event, HostWords, Kernel, LaunchShape, Partition, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// What a launch needs on its way: the events around it, and the word in which a block that leaves says so.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) began: Event,
    pub(super) ended: Event,
    words: Arc<HostWords>,
    index: usize,
}

impl Slot {
    /// Where kernels find the evicted word.
    pub(super) fn evicted_address(&self) -> u64 {
        self.words.address() + self.index as u64 * 4
    }

    /// Whether a block of the launch left; to be asked once it ended.
    pub(super) fn is_evicted(&self) -> bool {
        self.words.word(self.index).load(Acquire) != 0
    }

    /// Puts a launch between the slot's events into a stream; one without blocks is nothing but its events.
    pub(super) fn launch(&self, stream: &Stream, kernel: &Kernel, shape: LaunchShape, params: &[u8]) -> Result<(), CudaError> {
        self.words.word(self.index).store(0, Release);
        self.began.record(stream)?;
        if !shape.grid.contains(&0) {
            kernel.launch_with(stream, shape, params)?;
        }
        match self.ended.record(stream) {
            // The launch is on its way, and may have faulted by now: whoever asks for the event will hear of it.
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
    /// Launches whose completion was not taken yet.
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
        let slot = |index| Ok(Slot { began: Event::new(context)?, ended: Event::new(context)?, words: words.clone(), index });
        let slots = (0..capacity as usize).map(slot).collect::<Result<_, CudaError>>()?;
        let stream = match partition {
            None => Stream::new(context, priority)?,
            Some(partition) => Stream::in_partition(partition, priority)?,
        };
        Ok(Queue { stream, slots, in_flight: 0, capacity })
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

    /// A launch is on its way.
    pub(super) fn begun(&mut self) {
        self.in_flight += 1;
    }

    /// The completion of one was taken, with the slot that it had.
    pub(super) fn ended(&mut self, slot: Option<Slot>) {
        self.in_flight -= 1;
        self.slots.extend(slot);
    }
}
