//! Reset-based preemption (REEF §4), as far as queues go: a real-time task that arrives empties the best-effort device queues by lazy eviction and starts at once.

use super::{Policy, View, own_queues};
use crate::ids::Class;
use std::ops::Range;

/// While a real-time task is there (*real-time mode*) best-effort tasks neither start nor issue, and what they have in the device queues leaves. When the last
/// one is finished (*normal mode*) they continue with their first incomplete launch.
///
/// Real-time mode begins with the arrival, not with the first real-time launch: the eviction runs while inputs are written.
pub(super) struct Reset;

impl Policy for Reset {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        own_queues(class, view)
    }

    fn may_issue(&self, class: Class, view: &View) -> bool {
        class == Class::RealTime || view.rt_tasks == 0
    }

    fn evicts(&self, class: Class, view: &View) -> bool {
        !self.may_issue(class, view)
    }
}
