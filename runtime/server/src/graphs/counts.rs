//! Counts of a graph's requests, for its statistics.

use atoll_engine::{InvocationResult, InvokeError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Requests of a graph since it was deployed or the daemon started, and the times of those that
/// succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) success: u64,
    /// Rows of those that succeeded: one for each if the graph has no `max_batch_size`.
    pub(crate) rows: u64,
    pub(crate) failure: u64,
    /// Time of those that failed, from arrival to answer, in nanoseconds.
    pub(crate) failure_ns: u64,
    /// Sums over all stages, in nanoseconds.
    pub(crate) queue_ns: u64,
    pub(crate) input_ns: u64,
    pub(crate) compute_ns: u64,
    pub(crate) output_ns: u64,
    /// Bytes of functions' inputs that other functions made, of all requests: taken from memory of
    /// the device, and copied through host memory.
    pub(crate) handed_over_bytes: u64,
    pub(crate) copied_bytes: u64,
}

impl Counts {
    fn note_failure(&mut self, took: Duration) {
        self.failure += 1;
        self.failure_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    }
}

/// [`Counts`] that requests on any thread add to.
#[derive(Debug, Default)]
pub(crate) struct GraphCounts(Mutex<Counts>);

impl GraphCounts {
    /// Counts a request of `rows` rows that has ended after this time.
    pub(super) fn note(&self, ended: &Result<InvocationResult, InvokeError>, rows: u64, took: Duration) {
        // The counts are plain sums, so a panic elsewhere does not break them.
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ended {
            Ok(result) => {
                counts.success += 1;
                counts.rows += rows;
                counts.queue_ns += result.timing.queue_ns;
                counts.input_ns += result.timing.input_ns;
                counts.compute_ns += result.timing.compute_ns;
                counts.output_ns += result.timing.output_ns;
            }
            Err(_) => counts.note_failure(took),
        }
    }

    /// Counts a request that was not admitted as failed.
    pub(super) fn note_rejection(&self, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note_failure(took);
    }

    /// Counts inputs of a function that other functions made.
    pub(super) fn note_moved(&self, handed_over: u64, copied: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.handed_over_bytes += handed_over;
        counts.copied_bytes += copied;
    }

    pub(crate) fn get(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
