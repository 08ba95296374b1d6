//! Seeded perturbation: running tasks are evicted at random points and continue, whatever the
//! policy.
//!
//! For tests. A task that was cut anywhere must give the same answer as one that was not; this cuts
//! it there. The same seed and the same events give the same cuts. The idea is Cranelift's control
//! plane: decisions of production code, driven by a seed, with fuel.

use crate::ids::Nanos;
use crate::limits::PERTURBATION_INTERVAL_NS_MAX;
use crate::rng::Rng;

/// One in how many events evicts a task at once.
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

    /// Whether this is the moment. Moments come with events and, so that long launches are hit
    /// midway, with time.
    pub(crate) fn strikes(&mut self, now: Nanos) -> bool {
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

    /// When it wants to be asked again.
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }
}
