//! Branches of a function that run beside each other: what its steps took in line, and which parts
//! of it are therefore run in two lines.
//!
//! The rule is measured twice. The first invocations of a set of shapes run in line and say how
//! long each step takes alone; [`plan_forks`] finds from that, and from how many compute units each
//! leaves idle, what two lines would gain. What beginning and joining two lines costs,
//! [`crate::limits::BRANCH_GAIN_MIN`], was measured by `atoll bench branches`.

use crate::limits::BRANCH_RUNS_MEASURED;
use atoll_core::{Fork, StepCost, plan_forks};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What a device can run at a time.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The compute units of the function's lane; 0 where no lines run beside each other.
    pub(crate) compute_units: u32,
    /// Blocks of each kernel that a compute unit holds at once; `None` where it runs one at a time.
    pub(crate) occupancy: Vec<Option<u32>>,
    /// What two lines have to gain.
    pub(crate) gain_ns_min: u64,
}

impl Room {
    /// How many blocks of a kernel run at a time.
    pub(crate) fn blocks_of(&self, kernel: u32) -> u64 {
        let on_each = self.occupancy.get(kernel as usize).copied().flatten().unwrap_or(1);
        u64::from(self.compute_units) * u64::from(on_each)
    }
}

/// What is known of the steps of a function with known symbols.
#[derive(Debug)]
pub(crate) struct Branches {
    /// The shortest time that each step took in line, in nanoseconds.
    shortest_ns: Box<[AtomicU64]>,
    /// Invocations that ran undisturbed, and were measured.
    runs: AtomicU32,
    /// Once decided.
    forks: OnceLock<Option<Arc<[Fork]>>>,
}

impl Branches {
    pub(crate) fn new(steps: usize) -> Branches {
        let shortest_ns = (0..steps).map(|_| AtomicU64::new(u64::MAX)).collect();
        Branches { shortest_ns, runs: AtomicU32::new(0), forks: OnceLock::new() }
    }

    /// Notes how long a step took that nothing disturbed.
    pub(crate) fn note_step(&self, step: u32, ns: u64) {
        if self.forks.get().is_none() {
            self.shortest_ns[step as usize].fetch_min(ns, Relaxed);
        }
    }

    /// Notes that all steps of an invocation were noted.
    pub(crate) fn note_run(&self) {
        if self.forks.get().is_none() {
            self.runs.fetch_add(1, Relaxed);
        }
    }

    /// The parts that gain so much in two lines; decided once enough is known. `needs` says which
    /// steps need which others, unless that is too much to say, `cost` what one is that takes so
    /// long.
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

    /// Nothing is ever run in two lines.
    pub(crate) fn give_up(&self) {
        // Whoever decided before has decided.
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
    fn what_runs_beside_each_other_is_decided_once_steps_were_measured() {
        let (branches, needs) = (Branches::new(2), || Some(vec![vec![], vec![]]));
        for _ in 0..BRANCH_RUNS_MEASURED {
            assert_eq!(branches.forks(GAIN_NS, needs, cost), None, "too little is known");
            run(&branches, GAIN_NS);
        }
        let forks = branches.forks(GAIN_NS, needs, cost).expect("two steps that need nothing");
        assert_eq!(*forks, [Fork::new([vec![0], vec![1]])]);
        run(&branches, 1);
        assert_eq!(branches.forks(GAIN_NS, || panic!("it is decided"), cost), Some(forks));
    }

    #[test]
    fn short_steps_stay_in_line_for_good() {
        let (branches, needs) = (Branches::new(2), || Some(vec![vec![], vec![]]));
        (0..BRANCH_RUNS_MEASURED).for_each(|_| run(&branches, GAIN_NS - 1));
        assert_eq!(branches.forks(GAIN_NS, needs, cost), None);
        run(&branches, GAIN_NS);
        assert_eq!(branches.forks(GAIN_NS, needs, cost), None, "it is decided");
        let given_up = Branches::new(2);
        given_up.give_up();
        (0..2 * BRANCH_RUNS_MEASURED).for_each(|_| run(&given_up, 1 << 30));
        assert_eq!(given_up.forks(GAIN_NS, needs, cost), None);
    }
}
