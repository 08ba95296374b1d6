//! Seeded random numbers, equal on every machine: for random kernels and the memory of the corpus.

use atoll_core::rng::Rng;

/// Choices and distributions over the simulator's generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    /// Seeded by the FNV-1a hash of a text.
    pub(crate) fn of(text: &str) -> Random {
        Random::new(
            text.bytes()
                .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Uniform in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A whole number in `low..high`.
    pub(crate) fn within(&mut self, low: i128, high: i128) -> i128 {
        low + i128::from(self.next_u64()).rem_euclid(high - low)
    }
}
