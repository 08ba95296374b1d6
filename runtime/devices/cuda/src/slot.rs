//! Resources of a launch in a stream: an event before and after it, and words in host memory.

use atoll_cuda::{CudaError, Event, HostWords, Stream};
use atoll_device::{Fault, FaultKind};
use atoll_kgraph::fault_word;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Words of a launch: its evicted word, one that aligns the fault word to 8 bytes, and the halves
/// of the fault word.
pub(super) const WORDS: usize = 4;

/// The index of the fault word among them.
const FAULT: usize = 2;

/// Where an access was that a fence found outside, for messages.
const OUTSIDE: &str = "outside the memory of its tenant";

/// The words of a number of launches, in host memory.
#[derive(Clone, Debug)]
pub(super) struct LaunchWords {
    words: Arc<HostWords>,
    /// The index of the first launch.
    first: usize,
}

impl LaunchWords {
    /// The words of launch `first` and of those behind it.
    pub(super) fn new(words: &Arc<HostWords>, first: usize) -> LaunchWords {
        LaunchWords { words: words.clone(), first }
    }

    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// The address of a launch's evicted word, for kernels.
    pub(super) fn evicted_address(&self, launch: usize) -> u64 {
        self.words.address() + self.at(launch) as u64 * 4
    }

    /// The address of a launch's fault word, for kernels.
    pub(super) fn fault_address(&self, launch: usize) -> u64 {
        self.evicted_address(launch) + FAULT as u64 * 4
    }

    /// Whether a block of a launch exited early. Valid after the launch has ended.
    pub(super) fn is_evicted(&self, launch: usize) -> bool {
        self.words.word(self.at(launch)).load(Acquire) != 0
    }

    /// The fault that threads of a launch reported. Valid after the launch has ended.
    pub(super) fn fault(&self, launch: usize, kernel: &str) -> Option<Fault> {
        let half = |at: usize| u64::from(self.words.word(self.at(launch) + FAULT + at).load(Acquire));
        fault_of(half(0) | half(1) << 32, kernel)
    }

    /// Clears the words of the first `launches` launches.
    pub(super) fn clear(&self, launches: usize) {
        let words = self.at(0)..self.at(launches);
        words.for_each(|word| self.words.word(word).store(0, Release));
    }

    fn at(&self, launch: usize) -> usize {
        (self.first + launch) * WORDS
    }
}

/// The fault that a fault word means.
fn fault_of(word: u64, kernel: &str) -> Option<Fault> {
    let kind = match word {
        0 => return None,
        fault_word::TRAP => FaultKind::Trap,
        1..fault_word::MISALIGNED_END => FaultKind::Misaligned,
        _ => FaultKind::OutOfBounds,
    };
    let place = (kind == FaultKind::OutOfBounds).then(|| OUTSIDE.to_owned());
    Some(Fault { place, ..Fault::of_kernel(kind, kernel) })
}

/// Resources of one submission to a stream: the events around it, and the words of a launch that is
/// submitted separately.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) began: Event,
    pub(super) ended: Event,
    pub(super) words: LaunchWords,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_the_fault_word_has_a_message() {
        let says = |word| fault_of(word, "k").map(|fault| fault.to_string());
        assert_eq!(says(0), None);
        for (word, cause) in [
            (1, "misaligned access"),
            (31, "misaligned access"),
            (fault_word::TRAP, "it executed `trap`"),
            (1 << 21, "access outside the memory of its tenant"),
            (u64::MAX - 7, "access outside the memory of its tenant"),
            (fault_word::OUTSIDE, "access outside the memory of its tenant"),
        ] {
            assert_eq!(says(word).as_deref(), Some(format!("kernel 'k' faulted: {cause}").as_str()), "{word:#x}");
        }
    }
}
