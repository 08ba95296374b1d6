//! Loads that change: the shapes that load generators such as locust offer.

use atoll_core::rng::Rng;

/// How a load changes between a low and a high rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// High in the middle third.
    Step,
    /// Rises to the middle, and falls again.
    Ramp,
    /// Low, and high three times for a thirtieth.
    Spike,
}

/// All shapes.
pub const SHAPES: [Shape; 3] = [Shape::Step, Shape::Ramp, Shape::Spike];

/// Where spikes begin, as parts of the run.
const SPIKES: [f64; 3] = [0.2, 0.5, 0.8];

/// How long a spike lasts, as a part of the run.
const SPIKE: f64 = 1.0 / 30.0;

/// In (0, 1], so that the logarithm is finite.
fn unit(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

impl Shape {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Step => "step",
            Shape::Ramp => "ramp",
            Shape::Spike => "spike",
        }
    }

    /// The rate at a part of the run, from 0 to 1, between `low` and `high`.
    pub fn rate(self, part: f64, low: f64, high: f64) -> f64 {
        let is_high = match self {
            Shape::Ramp => return low + (high - low) * (1.0 - (2.0 * part - 1.0).abs()).max(0.0),
            Shape::Step => (1.0 / 3.0..2.0 / 3.0).contains(&part),
            Shape::Spike => SPIKES.iter().any(|at| (*at..at + SPIKE).contains(&part)),
        };
        if is_high { high } else { low }
    }

    /// Arrivals of a Poisson process with this rate, in requests per second, until `end_ns`: an
    /// open loop, since no request waits for the answer to another one. `part` shifts the shape by
    /// a part of the run, so that several functions are not high at the same time.
    pub fn arrivals(self, low: f64, high: f64, end_ns: u64, part: f64, seed: u64) -> Vec<u64> {
        let most = low.max(high);
        let mut times = Vec::new();
        if most <= 0.0 {
            return times;
        }
        let (mut rng, mut at) = (Rng::new(seed), 0.0);
        let end = end_ns as f64;
        loop {
            // A process of the highest rate, of which a part is kept (thinning).
            at += -unit(&mut rng).ln() * 1e9 / most;
            if at >= end {
                return times;
            }
            let rate = self.rate((at / end + part).fract(), low, high);
            if unit(&mut rng) <= rate / most {
                times.push(at as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_have_their_shape() {
        let second = 1_000_000_000;
        for shape in SHAPES {
            let times = shape.arrivals(10.0, 100.0, 300 * second, 0.0, 7);
            assert_eq!(times, shape.arrivals(10.0, 100.0, 300 * second, 0.0, 7), "the same seed");
            assert!(times.is_sorted(), "{shape:?}");
            let in_part = |from: f64, to: f64| {
                let within = |at: &&u64| (from..to).contains(&(**at as f64 / 300e9));
                times.iter().filter(within).count() as f64 / (300.0 * (to - from))
            };
            let (quiet, busy) = match shape {
                Shape::Step => (in_part(0.0, 1.0 / 3.0), in_part(1.0 / 3.0, 2.0 / 3.0)),
                Shape::Ramp => (in_part(0.0, 0.05), in_part(0.45, 0.55)),
                Shape::Spike => (in_part(0.0, 0.2), in_part(0.2, 0.2 + SPIKE)),
            };
            assert!((5.0..20.0).contains(&quiet) && (80.0..120.0).contains(&busy), "{shape:?}: {quiet}, {busy}");
        }
        assert!(Shape::Step.arrivals(0.0, 0.0, second, 0.0, 1).is_empty());
    }
}
