//! What a launch needs on its way through a stream: events around it, and words in which blocks
//! that leave say so.

use atoll_cuda::{CudaError, Event, HostWords, Stream};
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

/// What goes into a stream at once needs on its way: the events around it, and an evicted word for
/// a launch that goes alone.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) began: Event,
    pub(super) ended: Event,
    pub(super) evicted: EvictedWords,
}

impl Slot {
    /// Puts something between the slot's events into a stream.
    pub(super) fn enclose(
        &self,
        stream: &Stream,
        put: impl FnOnce(&Stream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.began.record(stream)?;
        put(stream)?;
        match self.ended.record(stream) {
            // It is on its way, and may have faulted by now: whoever asks for the event will hear of it.
            Err(error) if error.is_context_lost() => Ok(()),
            answer => answer,
        }
    }
}
