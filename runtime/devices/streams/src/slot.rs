//! Resources of a launch in a stream: an event before and after it, and words in host memory.

use crate::driver::{Driver, DriverError, RecordAddresses, TrapRecord};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Words of a [`TrapRecord`].
pub const TRAP_WORDS: usize = 8;

/// Words of a launch: its evicted word, and its trap record at a multiple of its size.
pub(crate) const LAUNCH_WORDS: usize = 2 * TRAP_WORDS;

/// The words of one launch.
#[derive(Debug)]
pub(crate) struct LaunchWords<D: Driver> {
    words: Arc<D::Words>,
    first: usize,
}

impl<D: Driver> Clone for LaunchWords<D> {
    fn clone(&self) -> LaunchWords<D> {
        LaunchWords { words: self.words.clone(), first: self.first }
    }
}

impl<D: Driver> LaunchWords<D> {
    /// The words of slot `index`.
    pub(crate) fn new(words: &Arc<D::Words>, index: usize) -> LaunchWords<D> {
        LaunchWords { words: words.clone(), first: index * LAUNCH_WORDS }
    }

    /// The address of the evicted word, for kernels.
    pub(crate) fn evicted_address(&self) -> u64 {
        D::words_address(&self.words) + self.first as u64 * 4
    }

    /// The address of the trap record, for kernels.
    pub(crate) fn trap_address(&self) -> u64 {
        self.evicted_address() + TRAP_WORDS as u64 * 4
    }

    /// Whether a block exited early. Valid after the launch has ended.
    pub(crate) fn is_evicted(&self) -> bool {
        D::word(&self.words, self.first).load(Acquire) != 0
    }

    /// Marks the launch as evicted: its running blocks are about to be killed.
    pub(crate) fn evict(&self) {
        D::word(&self.words, self.first).store(1, Release);
    }

    /// The trap record. Valid after the launch has ended.
    pub(crate) fn trap(&self) -> TrapRecord {
        std::array::from_fn(|at| D::word(&self.words, self.first + TRAP_WORDS + at).load(Acquire))
    }

    /// Clears all words.
    pub(crate) fn clear(&self) {
        (0..LAUNCH_WORDS).for_each(|at| D::word(&self.words, self.first + at).store(0, Release));
    }
}

/// Resources of one launch in a stream.
#[derive(Debug)]
pub(crate) struct Slot<D: Driver> {
    pub(crate) began: D::Event,
    pub(crate) ended: D::Event,
    pub(crate) words: LaunchWords<D>,
    /// The print buffer, once a launch has needed one.
    pub(crate) print: Option<D::Words>,
}

impl<D: Driver> Slot<D> {
    /// The addresses of its records, for kernels.
    pub(crate) fn records(&self) -> RecordAddresses {
        let print = self.print.as_ref().map_or(0, D::words_address);
        RecordAddresses { trap: self.words.trap_address(), print }
    }

    /// Enqueues work in a stream, behind the slot's first event. After that, [`Slot::end`] records
    /// the second one.
    pub(crate) fn begin(
        &self,
        stream: &D::Stream,
        put: impl FnOnce(&D::Stream) -> Result<(), D::Error>,
    ) -> Result<(), D::Error> {
        D::record(&self.began, stream)?;
        put(stream)
    }

    /// Records the end of the work. An error means that its end cannot be noticed.
    pub(crate) fn end(&self, stream: &D::Stream) -> Result<(), D::Error> {
        match D::record(&self.ended, stream) {
            // The work is enqueued and may already have faulted; polling the event will report it.
            Err(error) if error.is_device_lost() => Ok(()),
            answer => answer,
        }
    }
}
