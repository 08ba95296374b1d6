//! A device queue as the scheduler sees it: its launches in flight, and the tasks bound to it.

use crate::ids::{Epoch, LaunchId, Nanos, TaskId};
use crate::limits::HANG_NS;
use std::collections::VecDeque;

/// A launch that was submitted to the device and has not been reported as ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) launch: LaunchId,
    pub(crate) task: TaskId,
    pub(crate) step: u32,
    pub(crate) epoch: Epoch,
    pub(crate) abort: Abort,
}

/// Blocks of a task that are co-scheduled in a launch of another task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoScheduled {
    /// The launch of the other task.
    pub(crate) beside: LaunchId,
    /// The task whose blocks these are.
    pub(crate) task: TaskId,
    pub(crate) blocks: u32,
    /// Device time in nanoseconds that is charged to the client of the blocks; 0 if no client has a
    /// share.
    pub(crate) charge_ns: u64,
}

/// The state of a forced end of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abort {
    /// Not requested.
    No,
    /// Requested; the launch counts as hung after `until`.
    Told { until: Nanos },
    /// The launch did not end in time, and was reported as hung.
    Hung,
}

/// One device queue: a bounded FIFO of launches, fed by the tasks bound to it.
#[derive(Debug)]
pub(crate) struct DeviceQueue {
    in_flight: VecDeque<InFlight>,
    /// Bound tasks in the order in which they started. A task stays bound to its queue until it is
    /// finished, so that a launch that is issued again stays behind the launch it repeats.
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

    /// The oldest launch. If any launch of the queue is running, it is this one.
    pub(crate) fn oldest(&self) -> Option<&InFlight> {
        self.in_flight.front()
    }

    /// Marks the oldest launch as aborted, or as hung if its abort is overdue. Returns the new
    /// state, or `None` if there is nothing to report.
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

    /// Removes a launch that ended; `None` if an older launch of its task is still here. Launches
    /// of one task end in order; those of different tasks may run on different executors and end in
    /// any order.
    pub(crate) fn take(&mut self, launch: LaunchId) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|other| other.launch == launch)?;
        let task = self.in_flight[at].task;
        let is_oldest = !self.in_flight.iter().take(at).any(|other| other.task == task);
        if is_oldest { self.in_flight.remove(at) } else { None }
    }

    /// The task of each launch in the queue.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.in_flight.iter().map(|launch| launch.task)
    }

    /// Whether it contains a launch.
    pub(crate) fn holds(&self, launch: LaunchId) -> bool {
        self.in_flight.iter().any(|other| other.launch == launch)
    }

    /// Removes everything: the device is lost.
    pub(crate) fn clear(&mut self) {
        self.in_flight.clear();
        self.bound.clear();
    }

    pub(crate) fn unbind(&mut self, task: TaskId) {
        let at = self.bound.iter().position(|&bound| bound == task).expect("a task is bound to its queue");
        self.bound.remove(at);
    }
}
