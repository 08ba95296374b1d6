//! A bound on the starvation of best-effort work, independent of the policy. Optional.
//!
//! A policy that serves real-time tasks first starves best-effort tasks if the real-time load never
//! pauses. With the bound, the oldest best-effort task gets a *slice* whenever best-effort work
//! made no progress for that long. The slice is promised to the task and begins once the task is
//! prepared; during the slice the task issues and real-time tasks do not. Real-time launches that
//! are already on the device stay there. So best-effort work progresses at least once within the
//! bound, and real-time work loses at most a fixed share of the device
//! ([`BEST_EFFORT_SLICE_DIVISOR`]).

use crate::ids::{Nanos, TaskId};

/// The length of a slice is the bound divided by this. With 20, real-time tasks keep 95 % of the
/// device, and wait at most a twentieth of the bound for a slice.
pub const BEST_EFFORT_SLICE_DIVISOR: u64 = 20;

/// The bound, and the current slice.
#[derive(Debug)]
pub(crate) struct Starvation {
    wait_ns: u64,
    /// When best-effort work last made progress, or was last not blocked by real-time tasks.
    last_progress: Nanos,
    /// Whether real-time tasks block best-effort tasks.
    starves: bool,
    slice: Option<Slice>,
}

/// A period in which a best-effort task has the device although real-time tasks are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The best-effort task.
    pub task: TaskId,
    /// When it ends; `None` while it is promised and the task is not prepared yet.
    pub until: Option<Nanos>,
}

impl Starvation {
    pub(crate) fn new(wait_ns: u64) -> Starvation {
        Starvation { wait_ns, last_progress: Nanos(0), starves: false, slice: None }
    }

    /// Notes progress of best-effort work. A running slice continues; [`Starvation::end`] ends it.
    pub(crate) fn note_progress(&mut self, now: Nanos) {
        self.last_progress = now;
    }

    /// Ends the slice; the next one comes after another full wait.
    pub(crate) fn end(&mut self, now: Nanos) {
        (self.slice, self.last_progress) = (None, now);
    }

    /// Whether a slice is due. Called after every event; `starves` is whether real-time tasks block
    /// best-effort tasks.
    pub(crate) fn is_due(&mut self, starves: bool, now: Nanos) -> bool {
        if !std::mem::replace(&mut self.starves, starves) {
            self.note_progress(now);
        }
        starves && self.slice.is_none() && now >= self.due_at()
    }

    fn due_at(&self) -> Nanos {
        Nanos(self.last_progress.0.saturating_add(self.wait_ns))
    }

    /// Promises the next slice to a task; it begins once the task is prepared.
    pub(crate) fn promise(&mut self, task: TaskId) {
        self.slice = Some(Slice { task, until: None });
    }

    /// Begins, continues or ends the task's slice.
    pub(crate) fn run(&mut self, task: TaskId, now: Nanos) {
        let begun = self.slice.and_then(|slice| slice.until);
        let until = begun.unwrap_or(Nanos(now.0.saturating_add(self.wait_ns / BEST_EFFORT_SLICE_DIVISOR)));
        match begun {
            Some(until) if now >= until => self.end(now),
            _ => self.slice = Some(Slice { task, until: Some(until) }),
        }
    }

    /// The slice that is running or promised.
    pub(crate) fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// The task whose slice is running or promised.
    pub(crate) fn holder(&self) -> Option<TaskId> {
        self.slice.map(|slice| slice.task)
    }

    /// The task whose slice is running.
    pub(crate) fn running(&self) -> Option<TaskId> {
        self.slice.filter(|slice| slice.until.is_some()).map(|slice| slice.task)
    }

    /// When [`Starvation::is_due`] or [`Starvation::run`] is to be called again. `starves` as
    /// there.
    pub(crate) fn wakeup(&self, starves: bool) -> Option<Nanos> {
        match self.slice {
            Some(slice) => slice.until,
            None => starves.then(|| self.due_at()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_comes_after_the_wait_and_ends_after_its_share() {
        let mut starvation = Starvation::new(1000);
        assert!(!starvation.is_due(true, Nanos(400)), "best-effort work was not blocked before");
        starvation.note_progress(Nanos(500));
        assert!(!starvation.is_due(true, Nanos(1499)) && starvation.is_due(true, Nanos(1500)));
        assert_eq!((starvation.wakeup(false), starvation.wakeup(true)), (None, Some(Nanos(1500))));
        starvation.promise(TaskId(7));
        assert_eq!((starvation.holder(), starvation.running(), starvation.wakeup(true)), (Some(TaskId(7)), None, None));
        assert!(!starvation.is_due(true, Nanos(9000)), "one at a time");
        let slice = 1000 / BEST_EFFORT_SLICE_DIVISOR;
        starvation.run(TaskId(7), Nanos(2000));
        assert_eq!((starvation.running(), starvation.wakeup(true)), (Some(TaskId(7)), Some(Nanos(2000 + slice))));
        starvation.run(TaskId(7), Nanos(2000 + slice - 1));
        assert_eq!(starvation.running(), Some(TaskId(7)));
        starvation.run(TaskId(7), Nanos(2000 + slice));
        assert_eq!(
            (starvation.holder(), starvation.wakeup(true)),
            (None, Some(Nanos(3000 + slice))),
            "the next one comes after another full wait"
        );
    }
}
