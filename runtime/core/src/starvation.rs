//! What keeps best-effort work from starving, whatever the policy, where that is wanted.
//!
//! A policy that puts real-time tasks first leaves best-effort ones nothing where the real-time
//! load never pauses. With a bound, the oldest best-effort task gets a *slice* whenever best-effort
//! work got nowhere for that long: it is promised to the task, begins once that is prepared, and
//! for its time the task issues and real-time tasks do not. What these have on the device stays
//! there. So best-effort work as a whole moves at least once in the bound, and real-time work loses
//! at most a fixed share of the device ([`BEST_EFFORT_SLICE_DIVISOR`]).

use crate::ids::{Nanos, TaskId};

/// What part of the wait that best-effort work is spared a slice of it takes: with a twentieth,
/// real-time tasks keep 95 % of the device, and none waits longer than that for one.
pub const BEST_EFFORT_SLICE_DIVISOR: u64 = 20;

/// The bound, and who has a slice.
#[derive(Debug)]
pub(crate) struct Starvation {
    wait_ns: u64,
    /// When best-effort work got somewhere last, or nobody was in its way.
    fed: Nanos,
    /// Whether somebody is.
    starves: bool,
    slice: Option<Slice>,
}

/// A time for which a best-effort task has the device, although real-time tasks are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whose it is.
    pub task: TaskId,
    /// When it is over; `None` while it is promised and the task has yet to be prepared.
    pub until: Option<Nanos>,
}

impl Starvation {
    pub(crate) fn new(wait_ns: u64) -> Starvation {
        Starvation { wait_ns, fed: Nanos(0), starves: false, slice: None }
    }

    /// Best-effort work got somewhere. A slice goes on meanwhile; one that is over or of no use
    /// ends with [`Starvation::end`].
    pub(crate) fn feed(&mut self, now: Nanos) {
        self.fed = now;
    }

    /// No slice any more; the next one comes after a whole wait.
    pub(crate) fn end(&mut self, now: Nanos) {
        (self.slice, self.fed) = (None, now);
    }

    /// Whether it is time for a slice. To be asked after every event, with whether real-time tasks
    /// are in the way of best-effort ones.
    pub(crate) fn is_due(&mut self, starves: bool, now: Nanos) -> bool {
        if !std::mem::replace(&mut self.starves, starves) {
            self.feed(now);
        }
        starves && self.slice.is_none() && now >= self.due_at()
    }

    fn due_at(&self) -> Nanos {
        Nanos(self.fed.0.saturating_add(self.wait_ns))
    }

    /// The next slice is this task's, once it is prepared.
    pub(crate) fn promise(&mut self, task: TaskId) {
        self.slice = Some(Slice { task, until: None });
    }

    /// The task's slice begins, goes on, or is over.
    pub(crate) fn run(&mut self, task: TaskId, now: Nanos) {
        let begun = self.slice.and_then(|slice| slice.until);
        let until = begun.unwrap_or(Nanos(now.0.saturating_add(self.wait_ns / BEST_EFFORT_SLICE_DIVISOR)));
        match begun {
            Some(until) if now >= until => self.end(now),
            _ => self.slice = Some(Slice { task, until: Some(until) }),
        }
    }

    /// The slice that runs or is promised.
    pub(crate) fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// Whose slice it is or will be.
    pub(crate) fn holder(&self) -> Option<TaskId> {
        self.slice.map(|slice| slice.task)
    }

    /// Whose slice has begun.
    pub(crate) fn running(&self) -> Option<TaskId> {
        self.slice.filter(|slice| slice.until.is_some()).map(|slice| slice.task)
    }

    /// When it wants to be asked again, if real-time tasks are in the way of best-effort ones.
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
        assert!(!starvation.is_due(true, Nanos(400)), "nobody was in its way before");
        starvation.feed(Nanos(500));
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
            "and the next one after a whole wait"
        );
    }
}
