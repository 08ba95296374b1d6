//! Distributions of request latencies by class. Threads update them without locks.

use atoll_engine::Class;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Binary logarithm of the first bound in nanoseconds: 16 µs, less than any request over a socket
/// takes.
const FIRST_BITS: u32 = 14;

/// Powers of two from the first bound to the last one, 69 s.
const OCTAVES: u32 = 22;

/// Buckets per power of two. The width of a bucket is at most a quarter of its lower bound.
const PARTS: u32 = 4;

/// Number of bounds.
pub(crate) const BOUNDS: usize = (OCTAVES * PARTS) as usize + 1;

/// The upper bound of a bucket in nanoseconds. The last bucket, [`BOUNDS`], has no bound.
pub(crate) fn bound_ns(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
    let first = 1 << (FIRST_BITS + octave);
    first + first / u64::from(PARTS) * part
}

/// The bucket of a duration: the first one whose bound is not below it.
fn bucket(ns: u64) -> usize {
    if ns <= 1 << FIRST_BITS {
        return 0;
    }
    // A bound is the last value of its bucket.
    let below = ns - 1;
    let octave = below.ilog2() - FIRST_BITS;
    let part = (below >> (octave + FIRST_BITS - PARTS.ilog2())) as u32 % PARTS;
    ((octave * PARTS + part + 1) as usize).min(BOUNDS)
}

/// Latencies of the successful requests of a model since it was loaded, and the time of those that
/// failed.
#[derive(Default)]
pub(crate) struct Latencies {
    classes: [Counts; 2],
    failure_ns: AtomicU64,
}

/// Counts of latencies by bucket.
#[derive(Debug)]
pub(crate) struct Counts {
    buckets: [AtomicU64; BOUNDS + 1],
    sum_ns: AtomicU64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { buckets: [const { AtomicU64::new(0) }; BOUNDS + 1], sum_ns: AtomicU64::new(0) }
    }
}

/// A distribution at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    pub(crate) sum_ns: u64,
    /// Buckets that are not empty, and their counts.
    pub(crate) counts: Vec<(usize, u64)>,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Counts {
    /// Counts a latency.
    pub(crate) fn note(&self, duration: Duration) {
        let ns = nanoseconds(duration);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The distribution; `None` if nothing was counted.
    pub(crate) fn distribution(&self) -> Option<Distribution> {
        let all = self.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        let some: Vec<(usize, u64)> = all.enumerate().filter(|(_, count)| *count > 0).collect();
        let sum_ns = self.sum_ns.load(Ordering::Relaxed);
        (!some.is_empty()).then_some(Distribution { sum_ns, counts: some })
    }
}

impl Latencies {
    pub(crate) fn note(&self, class: Class, duration: Duration) {
        self.of(class).note(duration);
    }

    /// Adds the time of a request that failed.
    pub(crate) fn note_failure(&self, duration: Duration) {
        self.failure_ns.fetch_add(nanoseconds(duration), Ordering::Relaxed);
    }

    /// Total time of the requests that failed.
    pub(crate) fn failure_ns(&self) -> u64 {
        self.failure_ns.load(Ordering::Relaxed)
    }

    /// The distribution of a class; `None` if it has had no requests.
    pub(crate) fn distribution(&self, class: Class) -> Option<Distribution> {
        self.of(class).distribution()
    }

    /// The number of successful requests, and their total time in nanoseconds.
    pub(crate) fn successes(&self) -> (u64, u64) {
        let all = self.classes.iter().filter_map(Counts::distribution);
        all.fold((0, 0), |(count, ns), class| {
            (count + class.counts.iter().map(|(_, count)| count).sum::<u64>(), ns + class.sum_ns)
        })
    }

    fn of(&self, class: Class) -> &Counts {
        match class {
            Class::RealTime => &self.classes[0],
            Class::BestEffort => &self.classes[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_first_bucket_whose_bound_holds_it() {
        assert!((1..BOUNDS).all(|at| bound_ns(at - 1) < bound_ns(at)));
        let around = |at| [bound_ns(at) - 1, bound_ns(at), bound_ns(at) + 1];
        for ns in (0..BOUNDS).flat_map(around).chain([0, 1, u64::MAX]) {
            let expected = (0..BOUNDS).find(|at| ns <= bound_ns(*at)).unwrap_or(BOUNDS);
            assert_eq!(bucket(ns), expected, "{ns} ns");
        }
        let width = |at: usize| (bound_ns(at) - bound_ns(at - 1)) as f64 / bound_ns(at - 1) as f64;
        assert!((1..BOUNDS).all(|at| width(at) <= 0.25));
    }

    #[test]
    fn classes_are_counted_apart() {
        let latencies = Latencies::default();
        assert_eq!(latencies.distribution(Class::RealTime), None);
        latencies.note(Class::RealTime, Duration::from_micros(1));
        latencies.note(Class::RealTime, Duration::from_secs(100));
        latencies.note(Class::BestEffort, Duration::from_micros(20));
        let real_time = latencies.distribution(Class::RealTime).unwrap();
        assert_eq!((real_time.sum_ns, real_time.counts), (100_000_001_000, vec![(0, 1), (BOUNDS, 1)]));
        assert_eq!(latencies.successes(), (3, 100_000_021_000));
        let best_effort = latencies.distribution(Class::BestEffort).unwrap();
        assert_eq!(best_effort.counts, [(1, 1)]);
        assert!(bound_ns(0) < 20_000 && 20_000 <= bound_ns(1));
    }
}
