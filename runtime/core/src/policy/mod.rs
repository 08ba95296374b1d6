//! Policies: who may use which device queue, when, and who has to leave.
//!
//! A policy is a set of small pure answers; the scheduler asks them after every event and does the
//! rest. To add one, write a file beside this one and a row in [`POLICIES`]: its name then works in
//! configuration and on the command line, and the simulation covers it.

mod block_wait;
mod edf;
mod reef;
mod reset;
mod rt_only;
mod sequential;
mod streams;

use crate::event::TaskSpec;
use crate::ids::{Class, PreemptLevel, Urgency};
use std::ops::Range;

/// What a policy decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Device queues there are.
    pub queues: u32,
    /// What the device can do to work it was given.
    pub preempt_level: PreemptLevel,
    /// Rank of the most urgent real-time task that arrived, is not finished, and may start.
    pub rt_first: Option<u64>,
    /// Launches of best-effort tasks in the device queues.
    pub be_in_flight: usize,
}

impl View {
    /// Whether somebody has to wait for a real-time task: best-effort tasks for any, real-time ones
    /// for one of lower rank.
    fn is_outranked(&self, task: Urgency) -> bool {
        self.rt_first.is_some_and(|rank| Urgency { class: Class::RealTime, rank } < task)
    }
}

/// One way of sharing a device.
pub trait Policy: Send {
    /// Whether tasks of a class are taken at all; others are refused when they arrive.
    fn admits(&self, _class: Class) -> bool {
        true
    }

    /// The device queues that tasks of a class are bound to. Not empty; queue 0 has the highest
    /// priority on the device.
    fn queues(&self, class: Class, view: &View) -> Range<u32>;

    /// Whether a task may issue launches now. Where a task may not, neither may less urgent ones of
    /// its class.
    fn may_issue(&self, task: Urgency, view: &View) -> bool;

    /// Whether a task may be bound to a device queue and prepared now. One that may and may not
    /// issue is a candidate for padding.
    fn may_start(&self, task: Urgency, view: &View) -> bool {
        self.may_issue(task, view)
    }

    /// Whether best-effort blocks run beside real-time launches.
    fn pads(&self) -> bool {
        false
    }

    /// Whether launches of a task have to leave the device queues now. They are issued again once
    /// [`Policy::may_issue`] allows it. Where a task has to leave, so do all less urgent ones
    /// of its class.
    fn evicts(&self, task: Urgency, view: &View) -> bool;

    /// Within its class a task of lower rank starts first; tasks of equal rank start in the order
    /// of their arrival.
    fn rank(&self, task: &TaskSpec) -> u64 {
        u64::from(task.priority)
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
        about: "real-time tasks evict best-effort launches and less urgent real-time ones at once; these continue where they were when nobody more urgent is left",
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
        about: "as reset; the task with the earliest deadline is the most urgent one of its class",
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

/// Queue 0 for real-time tasks, the others for best-effort ones. A device with a single queue
/// serves both with it.
fn own_queues(class: Class, view: &View) -> Range<u32> {
    match class {
        Class::RealTime => 0..1,
        Class::BestEffort if view.queues == 1 => 0..1,
        Class::BestEffort => 1..view.queues,
    }
}

/// Real-time queues where there are enough for two: a task that evicts another real-time task
/// issues at once, and not behind what has yet to leave.
const RT_QUEUES: u32 = 2;

/// The first queues for real-time tasks, all others for best-effort ones.
fn urgent_queues(class: Class, view: &View) -> Range<u32> {
    if view.queues < 2 * RT_QUEUES {
        return own_queues(class, view);
    }
    match class {
        Class::RealTime => 0..RT_QUEUES,
        Class::BestEffort => RT_QUEUES..view.queues,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_default_exists() {
        for (i, entry) in POLICIES.iter().enumerate() {
            assert!(
                POLICIES[..i].iter().all(|other| other.name != entry.name),
                "two policies are called {}",
                entry.name
            );
            assert!(!entry.about.is_empty());
        }
        assert!(policy_by_name(POLICY_DEFAULT).is_some());
        assert!(policy_by_name("fastest").is_none());
    }

    #[test]
    fn every_policy_gives_every_class_a_queue_of_the_device() {
        for entry in POLICIES {
            for queues in 1..8 {
                let view = View { queues, preempt_level: PreemptLevel::Deactivate, rt_first: Some(0), be_in_flight: 1 };
                for class in [Class::RealTime, Class::BestEffort] {
                    let range = (entry.make)().queues(class, &view);
                    assert!(!range.is_empty() && range.end <= queues, "{}: {range:?} of {queues}", entry.name);
                }
            }
        }
    }

    #[test]
    fn who_preempts_does_so_by_rank() {
        let view = |rt_first| View { queues: 8, preempt_level: PreemptLevel::Deactivate, rt_first, be_in_flight: 0 };
        let [first, second] = [1, 2].map(|rank| Urgency { class: Class::RealTime, rank });
        let other = Urgency { class: Class::BestEffort, rank: 0 };
        for entry in POLICIES {
            let policy = (entry.make)();
            let preempts = ["reset", "reef", "edf"].contains(&entry.name);
            let evicted = [first, second, other].map(|task| policy.evicts(task, &view(Some(1))));
            assert_eq!(evicted, [false, preempts, preempts], "{}", entry.name);
            let issue = [first, second, other].map(|task| policy.may_issue(task, &view(Some(1))));
            let keeps_out = preempts || entry.name == "block-wait";
            assert_eq!(issue, [true, !preempts, !keeps_out], "{}", entry.name);
            assert!(policy.may_issue(other, &view(None)) && !policy.evicts(other, &view(None)), "{}", entry.name);
            assert_eq!(policy.may_start(other, &view(Some(1))), !keeps_out || policy.pads(), "{}", entry.name);
            assert_eq!(policy.may_start(second, &view(Some(1))), !preempts, "{}", entry.name);
        }
    }
}
