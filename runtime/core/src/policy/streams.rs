//! Unprioritised sharing (REEF's *GPU streams*): the baseline for throughput.

use super::{Policy, View, own_queues};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// Each class has its own device queues, and the device decides how they share its compute units.
pub(super) struct Streams;

impl Policy for Streams {
    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        own_queues(class, view)
    }

    fn may_issue(&self, _task: Urgency, _view: &View) -> bool {
        true
    }

    fn evicts(&self, _task: Urgency, _view: &View) -> bool {
        false
    }
}
