//! Wait-based preemption (REEF §7.3, extended to several best-effort tasks): the baseline for
//! preemption.

use super::{Policy, View, own_queues};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// A real-time task that arrives stops best-effort tasks from issuing, and waits until their
/// launches on the device have run to their end.
pub(super) struct BlockWait;

impl Policy for BlockWait {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        own_queues(class, view)
    }

    fn may_issue(&self, task: Urgency, view: &View) -> bool {
        match task.class {
            Class::RealTime => view.be_in_flight == 0,
            Class::BestEffort => view.rt_first.is_none(),
        }
    }

    fn evicts(&self, _task: Urgency, _view: &View) -> bool {
        false
    }
}
