//! Counters of the response cache for one model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Cache lookups of a model's requests, and their times.
#[derive(Debug, Default)]
pub(crate) struct CacheCounts {
    hits: AtomicU64,
    hit_ns: AtomicU64,
    misses: AtomicU64,
    miss_ns: AtomicU64,
}

/// A count of requests and the sum of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) count: u64,
    /// Total time in ns. For hits: from the start of the request to its answer. For misses: lookup
    /// and insertion only.
    pub(crate) ns: u64,
}

impl CacheCounts {
    pub(crate) fn hits(&self) -> Looked {
        Looked { count: self.hits.load(Ordering::Relaxed), ns: self.hit_ns.load(Ordering::Relaxed) }
    }

    pub(crate) fn misses(&self) -> Looked {
        Looked { count: self.misses.load(Ordering::Relaxed), ns: self.miss_ns.load(Ordering::Relaxed) }
    }

    pub(crate) fn note_hit(&self, took: Duration) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        self.hit_ns.fetch_add(nanoseconds(took), Ordering::Relaxed);
    }

    pub(crate) fn note_miss(&self, took: Duration) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        self.miss_ns.fetch_add(nanoseconds(took), Ordering::Relaxed);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
