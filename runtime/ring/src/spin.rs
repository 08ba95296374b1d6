//! Spinning before sleeping.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A wait that spins until its limit. It does not yield: on a busy machine a thread that yields
/// loses its CPU for milliseconds, while one that sleeps gets it back when it is woken.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    limit: Duration,
    begun: Instant,
}

impl Spin {
    /// Begins a wait that spins for `limit`, or not at all if the process has one CPU: the other side
    /// then needs it.
    pub fn new(limit: Duration) -> Spin {
        static CPUS: OnceLock<usize> = OnceLock::new();
        let cpus = *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
        Spin { limit: if cpus > 1 { limit } else { Duration::ZERO }, begun: Instant::now() }
    }

    /// Spins once. False if the limit has passed; the caller then sleeps.
    pub fn turn(&self) -> bool {
        std::hint::spin_loop();
        self.begun.elapsed() < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_a_limit_sleeps_at_once_and_others_end() {
        assert!(!Spin::new(Duration::ZERO).turn());
        let spin = Spin::new(Duration::from_micros(100));
        while spin.turn() {}
        assert!(spin.begun.elapsed() >= spin.limit);
    }
}
