//! Earliest deadline first (Liu, Layland: Scheduling Algorithms for Multiprogramming in a
//! Hard-Real-Time Environment), within each class.

use super::reset::Reset;
use super::{Policy, View};
use crate::event::TaskSpec;
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// As [`Reset`]; but the earlier its deadline, the more urgent a task is. Those without one come
/// last, in the order of their arrival.
///
/// So a real-time task evicts those of later deadlines. Best-effort tasks only start in the order
/// of their deadlines.
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
        task.deadline.map_or(u64::MAX, |at| at.0)
    }
}
