//! Seeded random numbers for inputs and arrivals; the same seed gives the same values on every
//! machine.

use atoll_core::rng::Rng;

/// Distributions over the simulator's generator.
#[derive(Clone, Debug)]
pub struct Random(Rng);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    /// Uniform 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Exponential with mean 1: the time between arrivals of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let mut random = Random::new(1);
        let count = 20_000;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count as f64;
        let normal: Vec<f64> = (0..count).map(|_| random.normal()).collect();
        let squares: Vec<f64> = normal.iter().map(|v| v * v).collect();
        let gaps: Vec<f64> = (0..count).map(|_| random.exponential()).collect();
        assert!(mean(&normal).abs() < 0.03 && (mean(&squares) - 1.0).abs() < 0.05 && (mean(&gaps) - 1.0).abs() < 0.03);
    }
}
