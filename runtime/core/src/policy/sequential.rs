//! One task after the other (REEF's *SEQ*): the baseline for predictability.

use super::{Policy, View};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// Everything goes through device queue 0 in the order in which tasks start. Among waiting tasks
/// real-time ones start first, but no task interrupts one that has started.
pub(super) struct Sequential;

impl Policy for Sequential {
    fn queues(&self, _class: Class, _view: &View) -> Range<u32> {
        0..1
    }

    fn may_issue(&self, _task: Urgency, _view: &View) -> bool {
        true
    }

    fn evicts(&self, _task: Urgency, _view: &View) -> bool {
        false
    }
}
