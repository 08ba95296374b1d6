//! Resources of a launch in a stream: an event before and after it, and evicted words.

use atoll_cuda::{CudaError, Event, HostWords, Stream};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Evicted words in host memory for a number of launches, one for each.
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

    /// The address of a launch's evicted word, for kernels.
    pub(super) fn address(&self, launch: usize) -> u64 {
        self.words.address() + (self.first + launch) as u64 * 4
    }

    /// Whether a block of a launch exited early. Valid after the launch has ended.
    pub(super) fn is_set(&self, launch: usize) -> bool {
        self.words.word(self.first + launch).load(Acquire) != 0
    }

    /// Clears the evicted words of the first `launches` launches.
    pub(super) fn clear(&self, launches: usize) {
        (0..launches).for_each(|launch| self.words.word(self.first + launch).store(0, Release));
    }
}

/// Resources of one submission to a stream: the events around it, and an evicted word for a launch
/// that is submitted separately.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) began: Event,
    pub(super) ended: Event,
    pub(super) evicted: EvictedWords,
}

impl Slot {
    /// Enqueues work in a stream, between the slot's events.
    pub(super) fn enclose(
        &self,
        stream: &Stream,
        put: impl FnOnce(&Stream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.began.record(stream)?;
        put(stream)?;
        match self.ended.record(stream) {
            // The work is enqueued and may already have faulted; polling the event will report it.
            Err(error) if error.is_context_lost() => Ok(()),
            answer => answer,
        }
    }
}
