//! Earliest deadline first (Liu, Layland: Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment), within each class.

use super::reset::Reset;
use super::{Policy, View};
use crate::event::TaskSpec;
use crate::ids::Class;
use std::ops::Range;

/// As [`Reset`] between the classes; within a class the task with the earliest deadline starts first, and those without one last.
///
/// A task that has started is not interrupted by another of its class: the device queue of real-time tasks is left in the order in which it was filled.
pub(super) struct Edf;

impl Policy for Edf {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        Reset.queues(class, view)
    }

    fn may_issue(&self, class: Class, view: &View) -> bool {
        Reset.may_issue(class, view)
    }

    fn evicts(&self, class: Class, view: &View) -> bool {
        Reset.evicts(class, view)
    }

    fn rank(&self, task: &TaskSpec) -> u64 {
        task.deadline.map_or(u64::MAX, |at| at.0)
    }
}
