//! The expected state of one task: the oracle that the scheduler is checked against.

use super::memory::Memory;
use atoll_core::{Class, Epoch, Fork, LaneId, LaunchProfile, Nanos, Outcome, Step};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Oracle {
    pub(super) class: Class,
    /// The lane it is in.
    pub(super) lane: LaneId,
    pub(super) rank: u64,
    pub(super) steps: Arc<[Step]>,
    /// How many of the steps the scheduler knows.
    pub(super) known: usize,
    pub(super) profiles: Arc<[Option<LaunchProfile>]>,
    pub(super) memory: Memory,
    /// Progress map: for each step, which blocks ran.
    pub(super) blocks: Vec<Vec<bool>>,
    /// For each step, whether its completion was reported to the scheduler.
    pub(super) complete: Vec<bool>,
    /// The epoch that the device reads; and raised values that it does not see yet, with the times
    /// from which it may.
    pub(super) word: Epoch,
    pub(super) stored: VecDeque<(Nanos, Epoch)>,
    /// The last epoch that the scheduler raised.
    pub(super) raised: Epoch,
    /// Its forks.
    pub(super) forks: Arc<[Fork]>,
    pub(super) in_flight: u32,
    /// Launches of other tasks in which its blocks are co-scheduled.
    pub(super) co_scheduled: u32,
    pub(super) host_step: Option<u32>,
    pub(super) prepared: bool,
    /// It is not ready.
    pub(super) unready: bool,
    /// Launches with co-scheduled blocks of this task that were aborted or failed, and whose end
    /// was not reported yet.
    pub(super) uncertain_launches: u32,
    /// A kernel failed; what runs behind it computes from incomplete inputs until it is stopped.
    pub(super) broken: bool,
    pub(super) deadline: Option<Nanos>,
    /// Since when it is over: cancelled, failed or past its deadline.
    pub(super) over_since: Option<Nanos>,
    pub(super) finished: Option<Outcome>,
}

impl Oracle {
    pub(super) fn step_done(&self, step: u32) -> bool {
        self.blocks[step as usize].iter().all(|&ran| ran)
    }

    /// Whether one step may be behind another in a queue: it is the next step, or both are in a
    /// fork.
    pub(super) fn may_follow(&self, behind: u32, ahead: u32) -> bool {
        let has_both = |fork: &Fork| fork.steps().contains(&ahead) && fork.steps().contains(&behind);
        behind == ahead + 1 || self.forks.iter().any(has_both)
    }

    /// Whether launches of a step may exit early.
    pub(super) fn is_preemptible(&self, step: u32) -> bool {
        matches!(self.steps[step as usize], Step::Preemptible | Step::Restartable { .. })
    }

    /// Whether launches of a step neither report an early exit nor keep a progress map.
    pub(super) fn is_restartable(&self, step: u32) -> bool {
        matches!(self.steps[step as usize], Step::Restartable { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        (0..self.steps.len() as u32).all(|step| self.step_done(step)) && self.memory.is_final()
    }

    /// Whether it is ready and not finished.
    pub(super) fn is_runnable(&self) -> bool {
        self.finished.is_none() && !self.unready
    }

    /// Whether the device or the host is working on it.
    pub(super) fn is_served(&self) -> bool {
        self.in_flight > 0 || self.co_scheduled > 0 || self.host_step.is_some()
    }

    /// A block computes. It may still be stopped before its end, and then is not complete.
    pub(super) fn compute(&mut self, step: u32, block: usize) {
        let answer = self.memory.run(step, block);
        let is_nonsense = self.broken || self.uncertain_launches > 0;
        assert!(is_nonsense || answer.is_ok(), "{}", answer.expect_err("looked at"));
    }

    /// A block runs from its start to its end.
    pub(super) fn run(&mut self, step: u32, block: usize) {
        self.compute(step, block);
        self.blocks[step as usize][block] = true;
    }
}
