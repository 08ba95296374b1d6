//! The configuration of a run, and its results.

use atoll_core::rng::Rng;
use atoll_core::{POLICIES, PolicyEntry, PreemptLevel};

/// The rate of a fault: one in this many opportunities, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(Option<u64>);

impl Rate {
    pub(crate) const NEVER: Rate = Rate(None);

    pub(crate) fn one_in(count: u64) -> Rate {
        Rate(Some(count))
    }

    pub(crate) fn is_never(self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn happens(self, rng: &mut Rng) -> bool {
        self.0.is_some_and(|count| rng.one_in(count))
    }
}

/// Faults and their rates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Clients cancel or die, per opportunity.
    pub(crate) dead_clients: Rate,
    /// Tasks have deadlines that may pass.
    pub(crate) deadlines: Rate,
    /// Kernels fail, per block.
    pub(crate) failing_kernels: Rate,
    /// Preparations and host steps fail.
    pub(crate) failing_steps: Rate,
    /// Launches never end by themselves.
    pub(crate) stuck_kernels: Rate,
    /// The end of a launch is reported late.
    pub(crate) late_completions: Rate,
    /// The scheduler is not woken at its wakeup time, and gets no event until something else
    /// happens.
    pub(crate) lost_wakeups: Rate,
    /// A raised epoch is seen so late that launches run to their end.
    pub(crate) failing_resets: Rate,
    /// The device is lost, per step.
    pub(crate) lost_device: Rate,
}

/// How a device handles [`atoll_core::Action::Abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aborts {
    /// It cannot abort, and is never asked to.
    Never,
    /// It ends the launch some time later.
    Late,
    /// It accepts the abort and never ends the launch.
    Broken,
}

/// The configuration of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) queues: u32,
    pub(crate) capacity_max: u64,
    pub(crate) preempt_level: PreemptLevel,
    pub(crate) perturb: Option<u64>,
    /// How long best-effort work may make no progress.
    pub(crate) best_effort_wait_ns_max: Option<u64>,
    /// Tasks arrive unready, and may become unready again.
    pub(crate) cold: bool,
    /// Every launch has its task's first step as restore point, which is wrong.
    pub(crate) wrong_restore_points: bool,
    /// Lose the device after this many steps.
    pub(crate) lost_after: Option<u64>,
    pub(crate) faults: Faults,
    /// Lanes are opened and closed at any time.
    pub(crate) lanes: bool,
    /// Host steps determine further steps of their tasks.
    pub(crate) unfolding: bool,
    /// Queues have paired queues, and independent steps run in two branches.
    pub(crate) paired_queues: bool,
    /// Branches are made of steps that depend on each other, which is wrong.
    pub(crate) wrong_forks: bool,
    /// How the device handles aborts.
    pub(crate) aborts: Aborts,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            queues: 3,
            capacity_max: 5,
            preempt_level: PreemptLevel::Deactivate,
            perturb: None,
            best_effort_wait_ns_max: None,
            cold: false,
            wrong_restore_points: false,
            lost_after: None,
            faults: Faults::default(),
            lanes: false,
            unfolding: false,
            paired_queues: false,
            wrong_forks: false,
            aborts: Aborts::Late,
        }
    }
}

impl Scenario {
    /// Clients cancel, deadlines pass, kernels and preparations fail.
    pub(crate) fn with_faults(self) -> Scenario {
        let faults = Faults {
            dead_clients: Rate::one_in(4),
            deadlines: Rate::one_in(4),
            failing_kernels: Rate::one_in(200),
            failing_steps: Rate::one_in(20),
            ..self.faults
        };
        Scenario { faults, ..self }
    }

    pub(crate) fn with_stuck_kernels(mut self, rate: u64) -> Scenario {
        self.faults.stuck_kernels = Rate::one_in(rate);
        self
    }

    /// A random scenario. Each fault is absent from about half of the scenarios, so that it does
    /// not hide others.
    pub(crate) fn any(seed: u64) -> (&'static PolicyEntry, Scenario) {
        let rng = &mut Rng::new(seed ^ 0x5EED);
        let policy = &POLICIES[rng.below(POLICIES.len() as u64) as usize];
        let pick = |rng: &mut Rng, from: &[u64]| from[rng.below(from.len() as u64) as usize];
        let rate = |rng: &mut Rng, often: u64, seldom: u64| {
            if rng.one_in(2) { Rate::NEVER } else { Rate::one_in(often + rng.below(seldom - often)) }
        };
        let aborts = [Aborts::Late, Aborts::Late, Aborts::Never, Aborts::Broken][rng.below(4) as usize];
        let mut faults = Faults {
            dead_clients: rate(rng, 2, 20),
            deadlines: rate(rng, 2, 10),
            failing_kernels: rate(rng, 50, 2000),
            failing_steps: rate(rng, 5, 50),
            stuck_kernels: rate(rng, 10, 100),
            late_completions: rate(rng, 2, 50),
            lost_wakeups: rate(rng, 2, 10),
            failing_resets: rate(rng, 2, 10),
            lost_device: rate(rng, 10_000, 100_000),
        };
        // Only an abort ends a stuck kernel, and only tasks that are over are aborted.
        if aborts == Aborts::Never {
            faults.stuck_kernels = Rate::NEVER;
        } else if !faults.stuck_kernels.is_never() {
            faults.dead_clients = Rate::one_in(4);
        }
        let levels = [PreemptLevel::Block, PreemptLevel::Deactivate, PreemptLevel::Interrupt];
        let scenario = Scenario {
            // Paired queues double this.
            queues: pick(rng, &[1, 2, 3, 3, 4, 8, 32]) as u32,
            capacity_max: pick(rng, &[1, 2, 5, 5, 9]),
            preempt_level: levels[rng.below(3) as usize],
            perturb: rng.one_in(4).then_some(seed),
            best_effort_wait_ns_max: rng.one_in(3).then(|| 100_000 + rng.below(5_000_000)),
            cold: rng.one_in(3),
            wrong_restore_points: false,
            lost_after: None,
            faults,
            lanes: rng.one_in(2),
            paired_queues: rng.one_in(2),
            wrong_forks: false,
            aborts,
            unfolding: rng.one_in(3),
        };
        (policy, scenario)
    }
}

/// Event counts of one run, or of many.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) steps: u64,
    pub(crate) complete: u64,
    pub(crate) cancelled: u64,
    pub(crate) failed: u64,
    pub(crate) expired: u64,
    pub(crate) lost: u64,
    pub(crate) evicted_launches: u64,
    pub(crate) repeated_launches: u64,
    pub(crate) issued_launches: u64,
    pub(crate) padding_blocks: u64,
    pub(crate) preemptions: u64,
    /// Slices of best-effort work while real-time tasks were present.
    pub(crate) slices: u64,
    /// Times a task became unready again.
    pub(crate) unready: u64,
    pub(crate) aborted_launches: u64,
    pub(crate) padded_launches: u64,
    /// Blocks that were stopped while running.
    pub(crate) stopped_blocks: u64,
    /// Runs in which the device counted as hung.
    pub(crate) hung: u64,
    /// Lanes that were closed, and tasks that moved out of a closing lane.
    pub(crate) closed_lanes: u64,
    pub(crate) moved: u64,
    /// Moved tasks that had complete steps.
    pub(crate) moved_midway: u64,
    /// Forks that ran in two branches, and evicted launches in second branches.
    pub(crate) forks: u64,
    pub(crate) evicted_in_second_branches: u64,
    /// Times a host step determined further steps.
    pub(crate) unfolded: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.steps += other.steps;
        self.complete += other.complete;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.expired += other.expired;
        self.lost += other.lost;
        self.evicted_launches += other.evicted_launches;
        self.issued_launches += other.issued_launches;
        self.padding_blocks += other.padding_blocks;
        self.preemptions += other.preemptions;
        self.repeated_launches += other.repeated_launches;
        self.slices += other.slices;
        self.unready += other.unready;
        self.aborted_launches += other.aborted_launches;
        self.padded_launches += other.padded_launches;
        self.stopped_blocks += other.stopped_blocks;
        self.hung += other.hung;
        self.closed_lanes += other.closed_lanes;
        self.moved += other.moved;
        self.moved_midway += other.moved_midway;
        self.forks += other.forks;
        self.evicted_in_second_branches += other.evicted_in_second_branches;
        self.unfolded += other.unfolded;
    }
}
