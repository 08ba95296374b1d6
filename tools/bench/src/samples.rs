//! Distributions of durations.

use serde::Serialize;
use std::time::Duration;

/// Quantiles of durations in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Number of durations.
    pub count: usize,
    /// Mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

impl Distribution {
    /// The distribution of durations; all zero if there are none.
    pub fn of(times: &[Duration]) -> Distribution {
        let mut sorted: Vec<f64> = times.iter().map(|t| crate::output::milliseconds(*t)).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(max_ms) = sorted.last().copied() else { return Distribution::default() };
        let quantile = |share| quantile(&sorted, share);
        let mean_ms = sorted.iter().sum::<f64>() / sorted.len() as f64;
        Distribution {
            count: sorted.len(),
            mean_ms,
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            max_ms,
        }
    }

    /// Cells of a table row: count, p50, p90, p99, max.
    pub fn cells(&self) -> [String; 5] {
        let ms = |value: f64| format!("{value:.3}");
        [self.count.to_string(), ms(self.p50_ms), ms(self.p90_ms), ms(self.p99_ms), ms(self.max_ms)]
    }
}

/// The smallest value that is at least as large as a share (0 to 1) of all values. The values are
/// sorted, and there is at least one.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_hundred() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let found = Distribution::of(&times);
        assert_eq!(
            (found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms, found.count),
            (50.0, 90.0, 99.0, 100.0, 100)
        );
        assert_eq!(Distribution::of(&times[..1]).p99_ms, 100.0);
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }
}
