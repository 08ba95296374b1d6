//! Reset-based preemption (REEF §4) of queues: a real-time task that arrives empties the
//! best-effort device queues by lazy eviction and starts at once.

use super::{Policy, View, urgent_queues};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// While a real-time task is present (*real-time mode*) best-effort tasks neither start nor issue,
/// and their launches in the device queues are evicted. When the last real-time task is finished
/// (*normal mode*) they continue with their first incomplete launch.
///
/// A real-time task also evicts less urgent real-time tasks, which have a higher rank. Real-time
/// tasks of equal rank run one after the other.
///
/// Real-time mode begins when the task arrives, not with its first launch: the eviction overlaps
/// with writing its inputs.
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
