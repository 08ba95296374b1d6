//! The device queue as the scheduler sees it: what is in it, and which tasks feed it.

use crate::ids::{Epoch, LaunchId, Nanos, TaskId};
use crate::limits::HANG_NS;
use std::collections::VecDeque;

/// A launch handed to the device and not yet known to have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) launch: LaunchId,
    pub(crate) task: TaskId,
    pub(crate) step: u32,
    pub(crate) epoch: Epoch,
    pub(crate) abort: Abort,
}

/// How far the end of a launch by force has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Nobody asked for it.
    No,
    /// The device was told, and should be done by then.
    Told { until: Nanos },
    /// It was not, and that was said.
    Hung,
}

/// One device queue: a bounded line of launches, fed by the tasks bound to it.
#[derive(Debug)]
pub(crate) struct DeviceQueue {
    in_flight: VecDeque<InFlight>,
    /// Bound tasks in the order in which they started. A task stays bound to its queue until it is
    /// finished, so that a launch that is issued again stands behind the one it repeats (design
    /// D5 c).
    pub(crate) bound: Vec<TaskId>,
    capacity: usize,
}

impl DeviceQueue {
    pub(crate) fn new(capacity: u32) -> DeviceQueue {
        let capacity = capacity as usize;
        assert!(capacity > 0, "a device queue without room can run nothing");
        DeviceQueue { in_flight: VecDeque::with_capacity(capacity), bound: Vec::new(), capacity }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.in_flight.len() < self.capacity
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(crate) fn depth(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn push(&mut self, launch: InFlight) {
        assert!(self.has_room(), "launch {:?} put into a full device queue", launch.launch);
        self.in_flight.push_back(launch);
    }

    /// The oldest launch, which is the one that runs if any does.
    pub(crate) fn oldest(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// Notes that the oldest launch is aborted now, or that it is overdue. Returns what is to be
    /// said about it.
    pub(crate) fn abort_oldest(&mut self, now: Nanos) -> Option<Abort> {
        let oldest = self.in_flight.front_mut()?;
        oldest.abort = match oldest.abort {
            Abort::No => Abort::Told { until: Nanos(now.0.saturating_add(HANG_NS)) },
            Abort::Told { until } if until <= now => Abort::Hung,
            _ => return None,
        };
        Some(oldest.abort)
    }

    /// When the oldest launch counts as hung.
    pub(crate) fn hung_at(&self) -> Option<Nanos> {
        match self.in_flight.front()?.abort {
            Abort::Told { until } => Some(until),
            Abort::No | Abort::Hung => None,
        }
    }

    /// Takes a launch that ended. Those of one task end in the order in which they were issued; of
    /// those of several, which may run on different executors, any may end first.
    pub(crate) fn take(&mut self, launch: LaunchId) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|other| other.launch == launch)?;
        let task = self.in_flight[at].task;
        let is_oldest = !self.in_flight.iter().take(at).any(|other| other.task == task);
        if is_oldest { self.in_flight.remove(at) } else { None }
    }

    /// Whether a launch is in it.
    pub(crate) fn holds(&self, launch: LaunchId) -> bool {
        self.in_flight.iter().any(|other| other.launch == launch)
    }

    /// Forgets everything: the device is lost.
    pub(crate) fn clear(&mut self) {
        self.in_flight.clear();
        self.bound.clear();
    }

    pub(crate) fn unbind(&mut self, task: TaskId) {
        let at = self.bound.iter().position(|&bound| bound == task).expect("a task is bound to its queue");
        self.bound.remove(at);
    }
}
