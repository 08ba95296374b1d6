//! Reset-based preemption and dynamic kernel padding (REEF §4, §5).

use super::reset::Reset;
use super::{Policy, View};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// Like [`Reset`], but while real-time tasks are present, blocks of best-effort tasks are
/// co-scheduled with their launches, if they do not slow these launches down.
pub(super) struct Reef;

impl Policy for Reef {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        Reset.queues(class, view)
    }

    fn may_issue(&self, task: Urgency, view: &View) -> bool {
        Reset.may_issue(task, view)
    }

    fn may_start(&self, task: Urgency, view: &View) -> bool {
        task.class == Class::BestEffort || self.may_issue(task, view)
    }

    fn pads(&self) -> bool {
        true
    }

    fn evicts(&self, task: Urgency, view: &View) -> bool {
        Reset.evicts(task, view)
    }
}
