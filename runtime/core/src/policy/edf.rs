//! Earliest deadline first (Liu, Layland: Scheduling Algorithms for Multiprogramming in a
//! Hard-Real-Time Environment), within each class.

use super::reset::Reset;
use super::{Policy, View};
use crate::event::TaskSpec;
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// Like [`Reset`], but a task with an earlier deadline is more urgent. Tasks without a deadline
/// come last, in the order of arrival.
///
/// A real-time task evicts real-time tasks with later deadlines. Best-effort tasks only start in
/// the order of their deadlines.
pub(super) struct Edf;

impl Policy for Edf {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        Reset.queues(class, view)
    }

    fn may_issue(&self, task: Urgency, view: &View) -> bool {
        Reset.may_issue(task, view)
    }

    fn evicts(&self, task: Urgency, view: &View) -> bool {
        Reset.evicts(task, view)
    }

    fn rank(&self, task: &TaskSpec) -> u64 {
        task.due.or(task.deadline).map_or(u64::MAX, |at| at.0)
    }
}
