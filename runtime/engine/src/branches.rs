//! Forks of a function: measures the durations of its steps and decides which sections run in two
//! concurrent branches.
//!
//! The decision rests on measurements. The first invocations of a shape combination run in order
//! and yield the duration of each step; from these, and from the number of compute units that each
//! step leaves idle, [`plan_forks`] estimates the gain of two branches. The cost of starting and
//! joining two branches, [`crate::limits::BRANCH_GAIN_MIN`], was measured with
//! `atoll bench branches`.

use crate::limits::BRANCH_RUNS_MEASURED;
use atoll_core::{Fork, StepCost, plan_forks};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The capacity of a device for a function.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    /// The compute units of the function's lane; 0 if branches cannot run concurrently there.
    pub(crate) compute_units: u32,
    /// Blocks of each kernel that fit on a compute unit; `None` if a compute unit runs one at a
    /// time.
    pub(crate) occupancy: Vec<Option<u32>>,
    /// The least gain for which branches run concurrently, in nanoseconds.
    pub(crate) gain_ns_min: u64,
}

impl Capacity {
    /// Blocks of a kernel that run at the same time.
    pub(crate) fn blocks_of(&self, kernel: u32) -> u64 {
        let on_each = self.occupancy.get(kernel as usize).copied().flatten().unwrap_or(1);
        u64::from(self.compute_units) * u64::from(on_each)
    }
}

/// Measured steps and forks of a function with known symbols.
#[derive(Debug)]
pub(crate) struct Branches {
    /// The shortest duration of each step when run in order, in nanoseconds.
    shortest_ns: Box<[AtomicU64]>,
    /// Number of measured invocations.
    runs: AtomicU32,
    /// The decision, once made.
    forks: OnceLock<Option<Arc<[Fork]>>>,
}

impl Branches {
    pub(crate) fn new(steps: usize) -> Branches {
        let shortest_ns = (0..steps).map(|_| AtomicU64::new(u64::MAX)).collect();
        Branches { shortest_ns, runs: AtomicU32::new(0), forks: OnceLock::new() }
    }

    /// Records the duration of a step of an undisturbed invocation.
    pub(crate) fn note_step(&self, step: u32, ns: u64) {
        if self.forks.get().is_none() {
            self.shortest_ns[step as usize].fetch_min(ns, Relaxed);
        }
    }

    /// Records that all steps of an invocation were measured.
    pub(crate) fn note_run(&self) {
        if self.forks.get().is_none() {
            self.runs.fetch_add(1, Relaxed);
        }
    }

    /// The sections that gain at least `gain_ns_min` in two branches; decided once enough
    /// invocations are measured. `needs` returns the dependencies of all steps, or `None` if there
    /// are too many; `cost` returns the cost of a step with a duration.
    pub(crate) fn forks(
        &self,
        gain_ns_min: u64,
        needs: impl FnOnce() -> Option<Vec<Vec<u32>>>,
        cost: impl Fn(usize, u64) -> StepCost,
    ) -> Option<Arc<[Fork]>> {
        if self.forks.get().is_none() && self.runs.load(Relaxed) < BRANCH_RUNS_MEASURED {
            return None;
        }
        let decide = || {
            let known = |ns: &AtomicU64| Some(ns.load(Relaxed)).filter(|ns| *ns < u64::MAX).unwrap_or(0);
            let costs: Vec<StepCost> =
                self.shortest_ns.iter().enumerate().map(|(step, ns)| cost(step, known(ns))).collect();
            let forks = plan_forks(&needs()?, &costs, gain_ns_min);
            (!forks.is_empty()).then(|| forks.into())
        };
        self.forks.get_or_init(decide).clone()
    }

    /// Decides that all steps run in order.
    pub(crate) fn disable(&self) {
        // Ignored if it is decided already.
        let _ = self.forks.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::Step;

    const GAIN_NS: u64 = 1000;

    fn cost(_: usize, ns: u64) -> StepCost {
        StepCost { step: Step::Preemptible, ns, busy_permille: 500 }
    }

    fn run(branches: &Branches, ns: u64) {
        (0..2).for_each(|step| branches.note_step(step, ns));
        branches.note_run();
    }

    #[test]
    fn forks_are_decided_once_steps_were_measured() {
        let (branches, needs) = (Branches::new(2), || Some(vec![vec![], vec![]]));
        for _ in 0..BRANCH_RUNS_MEASURED {
            assert_eq!(branches.forks(GAIN_NS, needs, cost), None, "too few invocations were measured");
            run(&branches, GAIN_NS);
        }
        let forks = branches.forks(GAIN_NS, needs, cost).expect("two independent steps");
        assert_eq!(*forks, [Fork::new([vec![0], vec![1]])]);
        run(&branches, 1);
        assert_eq!(branches.forks(GAIN_NS, || panic!("it was decided before"), cost), Some(forks));
    }

    #[test]
    fn short_steps_stay_in_order_for_good() {
        let (branches, needs) = (Branches::new(2), || Some(vec![vec![], vec![]]));
        (0..BRANCH_RUNS_MEASURED).for_each(|_| run(&branches, GAIN_NS - 1));
        assert_eq!(branches.forks(GAIN_NS, needs, cost), None);
        run(&branches, GAIN_NS);
        assert_eq!(branches.forks(GAIN_NS, needs, cost), None, "the decision is final");
        let disabled = Branches::new(2);
        disabled.disable();
        (0..2 * BRANCH_RUNS_MEASURED).for_each(|_| run(&disabled, 1 << 30));
        assert_eq!(disabled.forks(GAIN_NS, needs, cost), None);
    }
}
