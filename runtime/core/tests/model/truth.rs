//! The truth about one task, which the scheduler has to be right about.

use super::memory::Memory;
use atoll_core::{Class, Epoch, Fork, LaneId, LaunchProfile, Nanos, Outcome, Step};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) struct Truth {
    pub(super) class: Class,
    /// The lane it is in.
    pub(super) lane: LaneId,
    pub(super) rank: u64,
    pub(super) steps: Arc<[Step]>,
    /// How many of them the scheduler knows.
    pub(super) known: usize,
    pub(super) profiles: Arc<[Option<LaunchProfile>]>,
    pub(super) memory: Memory,
    /// Progress map: per step, which blocks ran.
    pub(super) blocks: Vec<Vec<bool>>,
    /// Per step, whether the scheduler was told that it is complete.
    pub(super) complete: Vec<bool>,
    /// What the device reads, and raised values it does not see yet, with the times from which it
    /// may.
    pub(super) word: Epoch,
    pub(super) stored: VecDeque<(Nanos, Epoch)>,
    /// The last epoch that the scheduler raised.
    pub(super) raised: Epoch,
    /// Its parts that may run in two lines.
    pub(super) forks: Arc<[Fork]>,
    pub(super) in_flight: u32,
    /// Launches of others that its blocks run beside.
    pub(super) riding: u32,
    pub(super) host_step: Option<u32>,
    pub(super) prepared: bool,
    /// What it needs is missing.
    pub(super) away: bool,
    /// Launches with which its blocks beside them were cut short, and of which the scheduler has
    /// yet to hear.
    pub(super) cut_short: u32,
    /// A kernel failed; what runs behind it computes nonsense until it is stopped.
    pub(super) broken: bool,
    pub(super) deadline: Option<Nanos>,
    /// Since when nobody wants it.
    pub(super) over_since: Option<Nanos>,
    pub(super) finished: Option<Outcome>,
}

impl Truth {
    pub(super) fn step_done(&self, step: u32) -> bool {
        self.blocks[step as usize].iter().all(|&ran| ran)
    }

    /// Whether one step may stand behind another in a queue: it is the next one, or both are in a
    /// part that may run in two lines.
    pub(super) fn may_follow(&self, behind: u32, ahead: u32) -> bool {
        let has_both = |fork: &Fork| fork.steps().contains(&ahead) && fork.steps().contains(&behind);
        behind == ahead + 1 || self.forks.iter().any(has_both)
    }

    /// Whether launches of a step may leave.
    pub(super) fn can_leave(&self, step: u32) -> bool {
        matches!(self.steps[step as usize], Step::Cuttable | Step::Restartable { .. })
    }

    /// Whether launches of a step neither say that they left nor remember what ran.
    pub(super) fn tells_nothing(&self, step: u32) -> bool {
        matches!(self.steps[step as usize], Step::Restartable { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        (0..self.steps.len() as u32).all(|step| self.step_done(step)) && self.memory.is_final()
    }

    /// Whether it could run and is not over.
    pub(super) fn wants_the_device(&self) -> bool {
        self.finished.is_none() && !self.away
    }

    /// Whether the device or the host works for it.
    pub(super) fn is_served(&self) -> bool {
        self.in_flight > 0 || self.riding > 0 || self.host_step.is_some()
    }

    /// A block computes. Whether it counts is another thing: it may be stopped before it is
    /// through.
    pub(super) fn compute(&mut self, step: u32, block: usize) {
        let answer = self.memory.run(step, block);
        let is_nonsense = self.broken || self.cut_short > 0;
        assert!(is_nonsense || answer.is_ok(), "{}", answer.expect_err("looked at"));
    }

    /// A block runs from its beginning to its end.
    pub(super) fn run(&mut self, step: u32, block: usize) {
        self.compute(step, block);
        self.blocks[step as usize][block] = true;
    }
}
