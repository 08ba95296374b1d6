//! Real-time tasks alone (REEF's *RT-Only*): their latency without best-effort load.

use super::streams::Streams;
use super::{Policy, View};
use crate::ids::{Class, Urgency};
use std::ops::Range;

/// Like [`Streams`], but best-effort tasks are refused when they arrive.
pub(super) struct RtOnly;

impl Policy for RtOnly {
    fn admits(&self, class: Class) -> bool {
        class == Class::RealTime
    }

    fn queues(&self, class: Class, view: &View) -> Range<u32> {
        Streams.queues(class, view)
    }

    fn may_issue(&self, task: Urgency, view: &View) -> bool {
        Streams.may_issue(task, view)
    }

    fn evicts(&self, task: Urgency, view: &View) -> bool {
        Streams.evicts(task, view)
    }
}
