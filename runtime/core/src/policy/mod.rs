//! Policies: who may use which device queue, when, and who has to leave.
//!
//! A policy is a set of small pure answers; the scheduler asks them after every event and does the rest. To add one, write a file beside this one and
//! a row in [`POLICIES`]: its name then works in configuration and on the command line, and the simulation covers it.

mod block_wait;
mod edf;
mod reef;
mod reset;
mod rt_only;
mod sequential;
mod streams;

use crate::event::TaskSpec;
use crate::ids::{Class, PreemptLevel};
use std::ops::Range;

/// What a policy decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Device queues there are.
    pub queues: u32,
    /// What the device can do to work it was given.
    pub preempt_level: PreemptLevel,
    /// Real-time tasks that arrived, are not finished, and may start.
    pub rt_tasks: usize,
    /// The same of best-effort tasks.
    pub be_tasks: usize,
    /// Launches of best-effort tasks in the device queues.
    pub be_in_flight: usize,
}

/// One way of sharing a device.
pub trait Policy: Send {
    /// Whether tasks of a class are taken at all; others are refused when they arrive.
    fn admits(&self, _class: Class) -> bool {
        true
    }

    /// The device queues that tasks of a class are bound to. Not empty; queue 0 has the highest priority on the device.
    fn queues(&self, class: Class, view: &View) -> Range<u32>;

    /// Whether tasks of a class may start and issue launches now.
    fn may_issue(&self, class: Class, view: &View) -> bool;

    /// Whether tasks of a class may be bound to a device queue and prepared now. One that may and may not issue is a candidate for padding.
    fn may_start(&self, class: Class, view: &View) -> bool {
        self.may_issue(class, view)
    }

    /// Whether best-effort blocks run beside real-time launches.
    fn pads(&self) -> bool {
        false
    }

    /// Whether launches of a class have to leave the device queues now. They are issued again once [`Policy::may_issue`] allows it.
    fn evicts(&self, class: Class, view: &View) -> bool;

    /// Within its class a task of lower rank starts first; tasks of equal rank start in the order of their arrival.
    fn rank(&self, _task: &TaskSpec) -> u64 {
        0
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// The name it is selected by.
    pub name: &'static str,
    /// What it does, in one line for help texts.
    pub about: &'static str,
    /// Makes one.
    pub make: fn() -> Box<dyn Policy>,
}

/// All policies.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: "reset",
        about: "real-time tasks evict best-effort launches at once; best-effort tasks continue where they were when no real-time task is left",
        make: || Box::new(reset::Reset),
    },
    PolicyEntry {
        name: "reef",
        about: "as reset, and best-effort blocks fill what real-time launches leave of the device",
        make: || Box::new(reef::Reef),
    },
    PolicyEntry {
        name: "streams",
        about: "every class has its own device queues and nobody is evicted",
        make: || Box::new(streams::Streams),
    },
    PolicyEntry {
        name: "sequential",
        about: "one device queue, one task after the other, waiting real-time tasks first",
        make: || Box::new(sequential::Sequential),
    },
    PolicyEntry {
        name: "block-wait",
        about: "real-time tasks wait until the best-effort launches on the device have run; nobody is evicted",
        make: || Box::new(block_wait::BlockWait),
    },
    PolicyEntry {
        name: "edf",
        about: "as reset; within a class the task with the earliest deadline starts first",
        make: || Box::new(edf::Edf),
    },
    PolicyEntry {
        name: "rt-only",
        about: "best-effort tasks are refused; the yardstick for real-time latency",
        make: || Box::new(rt_only::RtOnly),
    },
];

/// The name of the policy used where none is named.
pub const POLICY_DEFAULT: &str = "reset";

/// The policy of this name.
pub fn policy_by_name(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// Queue 0 for real-time tasks, the others for best-effort ones. A device with a single queue serves both with it.
fn own_queues(class: Class, view: &View) -> Range<u32> {
    match class {
        Class::RealTime => 0..1,
        Class::BestEffort if view.queues == 1 => 0..1,
        Class::BestEffort => 1..view.queues,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_default_exists() {
        for (i, entry) in POLICIES.iter().enumerate() {
            assert!(POLICIES[..i].iter().all(|other| other.name != entry.name), "two policies are called {}", entry.name);
            assert!(!entry.about.is_empty());
        }
        assert!(policy_by_name(POLICY_DEFAULT).is_some());
        assert!(policy_by_name("fastest").is_none());
    }

    #[test]
    fn every_policy_gives_every_class_a_queue_of_the_device() {
        for entry in POLICIES {
            for queues in 1..4 {
                let view = View { queues, preempt_level: PreemptLevel::Deactivate, rt_tasks: 1, be_tasks: 1, be_in_flight: 1 };
                for class in [Class::RealTime, Class::BestEffort] {
                    let range = (entry.make)().queues(class, &view);
                    assert!(!range.is_empty() && range.end <= queues, "{}: {range:?} of {queues}", entry.name);
                }
            }
        }
    }
}
