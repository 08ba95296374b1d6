//! Reset-based preemption (REEF §4), as far as queues go: a real-time task that arrives empties the
//! best-effort device queues by lazy eviction and starts at once.

use super::{Policy, View, urgent_queues};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// While a real-time task is there (*real-time mode*) best-effort tasks neither start nor issue,
/// and what they have in the device queues leaves. When the last one is finished (*normal mode*)
/// they continue with their first incomplete launch.
///
/// A real-time task does the same to real-time tasks of higher rank. Those of equal rank run one
/// after the other.
///
/// Real-time mode begins with the arrival, not with the first real-time launch: the eviction runs
/// while inputs are written.
pub(super) struct Reset;

impl Policy for Reset {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        urgent_queues(class, view)
    }

    fn may_issue(&self, task: Urgency, view: &View) -> bool {
        !view.is_outranked(task)
    }

    fn evicts(&self, task: Urgency, view: &View) -> bool {
        view.is_outranked(task)
    }
}
