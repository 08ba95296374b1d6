//! Real-time tasks alone (REEF's *RT-Only*): what their latency would be if nobody else were there.

use super::{Policy, View, own_queues};
use crate::ids::Class;
use std::ops::Range;

/// Best-effort tasks are refused when they arrive.
pub(super) struct RtOnly;

impl Policy for RtOnly {
    fn admits(&self, class: Class) -> bool {
        class == Class::RealTime
    }

    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        own_queues(class, view)
    }

    fn may_issue(&self, _class: Class, _view: &View) -> bool {
        true
    }

    fn evicts(&self, _class: Class, _view: &View) -> bool {
        false
    }
}
