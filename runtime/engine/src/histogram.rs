//! A histogram of durations with constant size and quantiles within 1/16.

use hdrhistogram::Histogram as Counts;

/// Significant decimal digits. One digit gives 16 buckets per power of two: a bucket is at most
/// 1/16 of its values wide, and all buckets take 5 KiB.
const DIGITS: u8 = 1;
/// Five hours; longer durations are counted as this.
const LONGEST_NS: u64 = (1 << 44) - 1;

/// Counts of durations in nanoseconds, with their exact sum and maximum.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    counts: Counts<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let counts = Counts::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds that are valid");
        Histogram { counts, sum_ns: 0, max_ns: 0 }
    }
}

impl Histogram {
    /// Adds a duration.
    pub fn record(&mut self, ns: u64) {
        self.counts.saturating_record(ns);
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Exact sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Exact maximum.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The `q`-quantile for `q` between 0 and 1, at most 1/16 too large; 0 if the histogram is
    /// empty.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        // For 0 itself the library returns the lower bound of the bucket.
        self.counts.value_at_quantile(q.clamp(f64::MIN_POSITIVE, 1.0)).min(self.max_ns)
    }

    /// The durations that were added after an earlier state of this histogram; all of them if it
    /// was no such state. The sum is exact, and the maximum at most 1/16 too large.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut counts = self.counts.clone();
        if counts.subtract(&earlier.counts).is_err() {
            return self.clone();
        }
        let max_ns = if counts.is_empty() { 0 } else { counts.max().min(self.max_ns) };
        Histogram { counts, sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns), max_ns }
    }

    /// How many durations are at most `ns`, up to the width of its bucket; for cumulative buckets
    /// of other formats.
    pub fn count_at_most(&self, ns: u64) -> u64 {
        self.counts.count_between(0, ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_enough() {
        let counts = Histogram::default().counts;
        for ns in (0..100_000)
            .chain((20..44).map(|bits| (1_u64 << bits) - 1))
            .chain((20..43).map(|bits| (1_u64 << bits) + 12_345))
        {
            let top = counts.highest_equivalent(ns);
            assert!(ns <= top && top - ns <= ns / 16, "{ns} in a bucket up to {top}");
        }
        assert_eq!(counts.distinct_values() * size_of::<u64>(), 5248, "bytes");
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile_ns(0.5), histogram.count_at_most(u64::MAX)), (0, 0));
        (1..=1000).for_each(|us| histogram.record(us * 1000));
        for (q, expected) in [(0.0, 1000), (0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = histogram.quantile_ns(q);
            assert!((expected..=expected + expected / 16).contains(&found), "quantile {q}: {found}");
        }
        assert_eq!((histogram.count(), histogram.max_ns(), histogram.sum_ns()), (1000, 1_000_000, 500_500_000));
        assert!((480..=520).contains(&histogram.count_at_most(500_000)));
    }

    #[test]
    fn durations_of_any_length_are_counted() {
        let mut histogram = Histogram::default();
        [0, LONGEST_NS, LONGEST_NS + 1, u64::MAX].into_iter().for_each(|ns| histogram.record(ns));
        assert_eq!((histogram.count(), histogram.max_ns(), histogram.sum_ns()), (4, u64::MAX, u64::MAX));
        assert_eq!(
            (histogram.count_at_most(0), histogram.count_at_most(1 << 43), histogram.count_at_most(u64::MAX)),
            (1, 1, 4)
        );
        assert_eq!(histogram.quantile_ns(1.0), LONGEST_NS);
    }

    #[test]
    fn the_durations_since_an_earlier_state() {
        let mut histogram = Histogram::default();
        [5_000_000, 1_000].into_iter().for_each(|ns| histogram.record(ns));
        let earlier = histogram.clone();
        assert_eq!(histogram.since(&earlier), Histogram::default());
        [10_000, 30_000, 20_000].into_iter().for_each(|ns| histogram.record(ns));
        let since = histogram.since(&earlier);
        assert_eq!((since.count(), since.sum_ns()), (3, 60_000));
        assert!((30_000..32_000).contains(&since.max_ns()), "{}", since.max_ns());
        assert!((20_000..21_500).contains(&since.quantile_ns(0.5)), "{}", since.quantile_ns(0.5));
        assert_eq!(earlier.since(&histogram), earlier);
    }
}
