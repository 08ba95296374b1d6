//! A histogram of durations: constant size, quantiles within 1/16.

/// Buckets per power of two; a value's bucket is at most 1/16 of the value wide.
const PER_OCTAVE: usize = 16;
/// Powers of two: up to 2^40 ns, a quarter of an hour. Longer values count as that.
const OCTAVES: usize = 41;

/// Counts of durations in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; PER_OCTAVE * OCTAVES], count: 0, sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Adds a value.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The largest, exactly.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// A value that a share `q` of all values (0 to 1) does not exceed, at most 1/16 above the smallest such value; 0 if there are none.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(index).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// How many values are at most `ns`, up to the width of its bucket; for cumulative buckets in other formats.
    pub fn count_at_most(&self, ns: u64) -> u64 {
        self.counts[..=bucket(ns)].iter().sum()
    }
}

/// Values below 16 have buckets of their own; above, the four bits behind the leading one choose within the octave.
fn bucket(ns: u64) -> usize {
    if ns < PER_OCTAVE as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize;
    let within = (ns >> (octave - 4)) as usize - PER_OCTAVE;
    ((octave - 3) * PER_OCTAVE + within).min(PER_OCTAVE * OCTAVES - 1)
}

/// The largest value of a bucket.
fn upper_bound(index: usize) -> u64 {
    if index < PER_OCTAVE {
        return index as u64;
    }
    let (octave, within) = (index / PER_OCTAVE + 3, (index % PER_OCTAVE) as u64);
    ((PER_OCTAVE as u64 + within + 1) << (octave - 4)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_a_bucket_that_is_narrow_enough() {
        for ns in (0..100_000).chain((20..40).map(|bits| (1_u64 << bits) + 12_345)) {
            let top = upper_bound(bucket(ns));
            assert!(ns <= top && top - ns <= ns / 16, "{ns} in a bucket up to {top}");
        }
        assert_eq!(bucket(u64::MAX), PER_OCTAVE * OCTAVES - 1);
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.5), 0);
        (1..=1000).for_each(|us| histogram.record(us * 1000));
        for (q, expected) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = histogram.quantile_ns(q);
            assert!((expected..=expected + expected / 16).contains(&found), "quantile {q}: {found}");
        }
        assert_eq!((histogram.count(), histogram.max_ns(), histogram.sum_ns()), (1000, 1_000_000, 500_500_000));
        assert!((480..=520).contains(&histogram.count_at_most(500_000)));
    }
}
