//! Hedging: sends a request to a second device if it takes longer than most, within a budget.

use crate::ids::Nanos;
use std::collections::VecDeque;

/// Number of recent times that are kept per function.
const WINDOW: usize = 128;

/// Number of times that a percentile needs. With fewer it is not meaningful.
const SAMPLES_MIN: usize = 20;

/// Largest number of hedges that are saved up while requests are fast.
const SAVED_MAX: u64 = 10;

/// Thousandths of a hedge in a hedge.
const ONE: u64 = 1_000;

/// How requests of a function are hedged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeConfig {
    /// The percentile of the measured times after which a request is sent to a second device.
    pub percentile: u8,
    /// How many of 1,000 requests may be sent twice.
    pub extra_per_mille: u32,
}

/// The hedging of one function.
#[derive(Clone, Debug)]
pub struct Hedges {
    config: HedgeConfig,
    times: VecDeque<u64>,
    /// In thousandths of a hedge.
    allowance: u64,
}

impl Hedges {
    /// A function without measurements.
    pub fn new(config: HedgeConfig) -> Hedges {
        Hedges { config, times: VecDeque::with_capacity(WINDOW), allowance: 0 }
    }

    /// A request arrived. Returns the time after its arrival at which it may be hedged. `None` if
    /// there are too few measurements or no hedge is left; the request need not be kept then.
    pub fn arrived(&mut self) -> Option<Nanos> {
        self.allowance = (self.allowance + u64::from(self.config.extra_per_mille)).min(SAVED_MAX * ONE);
        if self.times.len() < SAMPLES_MIN || self.allowance < ONE {
            return None;
        }
        let mut sorted: Vec<u64> = self.times.iter().copied().collect();
        sorted.sort_unstable();
        let at = (sorted.len() * usize::from(self.config.percentile.min(100))).div_ceil(100).max(1) - 1;
        Some(Nanos(sorted[at]))
    }

    /// Whether one more request may be sent twice. If so, it counts as sent.
    pub fn take(&mut self) -> bool {
        let may = self.allowance >= ONE;
        if may {
            self.allowance -= ONE;
        }
        may
    }

    /// A request was answered `took` after it arrived, by either device.
    pub fn ended(&mut self, took: Nanos) {
        if self.times.len() == WINDOW {
            self.times.pop_front();
        }
        self.times.push_back(took.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_hedged_after_the_percentile_of_the_latest_times() {
        let mut hedges = Hedges::new(HedgeConfig { percentile: 95, extra_per_mille: 50 });
        for took in 1..=100 {
            assert_eq!(hedges.arrived().is_some(), took > SAMPLES_MIN as u64, "{took}");
            hedges.ended(Nanos(took));
        }
        assert_eq!(hedges.arrived(), Some(Nanos(95)));
        (0..WINDOW).for_each(|_| hedges.ended(Nanos(7)));
        assert_eq!(hedges.arrived(), Some(Nanos(7)), "old times are forgotten");
    }

    #[test]
    fn the_extra_load_is_bounded() {
        let mut hedges = Hedges::new(HedgeConfig { percentile: 95, extra_per_mille: 50 });
        let hedged = (0..10_000).filter(|_| {
            hedges.arrived();
            hedges.take()
        });
        assert_eq!(hedged.count(), 500, "of each thousand requests fifty");
        for _ in 0..10_000 {
            hedges.arrived();
        }
        let saved = (0..100).filter(|_| hedges.take()).count();
        assert_eq!(saved as u64, SAVED_MAX, "no more are saved up while requests are fast");
        (0..SAMPLES_MIN).for_each(|_| hedges.ended(Nanos(7)));
        let kept = (0..40).filter(|_| hedges.arrived().is_some() && hedges.take()).count();
        assert_eq!(kept, 2, "without a hedge left, a request is not kept for one");
    }
}
