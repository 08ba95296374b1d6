//! Arrival times of the calls of a client.

use crate::disb::Load;
use atoll_core::rng::Rng;

/// Iterator over the arrival times of the calls of a client, in nanoseconds from the start of the
/// run. A closed loop ([`Load::Continuous`]) yields only the first call, and a dependent load
/// ([`Load::After`]) none, since the others depend on answers.
#[derive(Clone, Debug)]
pub struct Arrivals {
    load: Load,
    rng: Rng,
    /// The time of the last arrival.
    at: f64,
    count: usize,
}

impl Arrivals {
    /// The arrivals of a load. The seed only matters for random loads.
    pub fn new(load: &Load, seed: u64) -> Arrivals {
        Arrivals { load: load.clone(), rng: Rng::new(seed), at: 0.0, count: 0 }
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.count += 1;
        match &self.load {
            // Only the first call: each later call follows the answer to the previous one.
            Load::Continuous => (self.count == 1).then_some(0),
            Load::Periodic(rate) => Some(((self.count - 1) as f64 * 1e9 / rate) as u64),
            Load::Poisson(rate) => {
                // In (0, 1], so that the logarithm is finite.
                let unit = ((self.rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                self.at += -unit.ln() * 1e9 / rate;
                Some(self.at as u64)
            }
            Load::Trace(times) => times.get(self.count - 1).copied(),
            Load::After(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate() {
        let until = |load: Load, end: u64| Arrivals::new(&load, 1).take_while(|at| *at < end).count();
        assert_eq!(until(Load::Periodic(100.0), 1_000_000_000), 100);
        assert_eq!(until(Load::Continuous, u64::MAX), 1);
        assert_eq!(until(Load::Trace([1, 2, 5].into()), 5), 2);
        assert_eq!(until(Load::After(["a".to_owned()].into()), u64::MAX), 0);
        let calls = until(Load::Poisson(1000.0), 10_000_000_000);
        assert!(calls.abs_diff(10_000) < 400, "{calls}");
    }
}
