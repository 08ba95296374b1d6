//! Seeded perturbation: evicts running tasks at random points, under any policy. For tests.
//!
//! A task must give the same result wherever it is evicted. Perturbation tests this. The same seed
//! and the same events give the same evictions. As in Cranelift's control plane, a seed drives
//! decisions of production code.

use crate::ids::Nanos;
use crate::limits::PERTURBATION_INTERVAL_NS_MAX;
use crate::rng::Rng;

/// One event in this many evicts a task at once.
const EVENTS_PER_PERTURBATION: u64 = 4;

/// When to perturb next.
#[derive(Debug)]
pub(crate) struct Perturbation {
    rng: Rng,
    due: Nanos,
}

impl Perturbation {
    pub(crate) fn new(seed: u64) -> Perturbation {
        Perturbation { rng: Rng::new(seed), due: Nanos(0) }
    }

    /// Whether to evict a task now. Called after every event and, so that long launches are hit
    /// midway, when [`Perturbation::due`] has passed.
    pub(crate) fn is_due(&mut self, now: Nanos) -> bool {
        let due = now >= self.due;
        if due {
            self.due = Nanos(now.0 + 1 + self.rng.below(PERTURBATION_INTERVAL_NS_MAX));
        }
        due || self.rng.one_in(EVENTS_PER_PERTURBATION)
    }

    /// One of `count` victims; `count` must not be 0.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        self.rng.below(count as u64) as usize
    }

    /// When to call [`Perturbation::is_due`] next.
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }
}
