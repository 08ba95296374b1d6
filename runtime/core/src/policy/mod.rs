//! Policies: which class and task may use which device queue, and which tasks are evicted.
//!
//! A policy is a set of small pure functions; the scheduler calls them after every event and does
//! the rest. To add a policy, write a file in this folder and a row in [`POLICIES`]. Its name then
//! works in configuration and on the command line, and the simulation covers it.

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

/// The state that a policy decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Number of device queues.
    pub queues: u32,
    /// How the device can preempt launches.
    pub preempt_level: PreemptLevel,
    /// Rank of the most urgent real-time task that is ready and not finished.
    pub rt_first: Option<u64>,
    /// Launches of best-effort tasks in the device queues.
    pub be_in_flight: usize,
}

impl View {
    /// Whether a task is less urgent than the most urgent real-time task.
    fn is_outranked(&self, task: Urgency) -> bool {
        self.rt_first.is_some_and(|rank| Urgency { class: Class::RealTime, rank } < task)
    }
}

/// A scheduling policy.
pub trait Policy: Send {
    /// Whether tasks of a class are accepted; others are refused when they arrive.
    fn admits(&self, _class: Class) -> bool {
        true
    }

    /// The device queues that tasks of a class are bound to. Not empty; queue 0 has the highest
    /// priority on the device.
    fn queues(&self, class: Class, view: &View) -> Range<u32>;

    /// Whether a task may issue launches now. If a task may not, less urgent tasks of its class may
    /// not either.
    fn may_issue(&self, task: Urgency, view: &View) -> bool;

    /// Whether a task may be bound to a device queue and prepared now. A task that may start but
    /// not issue is a candidate for padding.
    fn may_start(&self, task: Urgency, view: &View) -> bool {
        self.may_issue(task, view)
    }

    /// Whether best-effort blocks are co-scheduled with real-time launches.
    fn pads(&self) -> bool {
        false
    }

    /// Whether a task's launches are to be evicted from the device queues now. They are issued
    /// again once [`Policy::may_issue`] allows it. If a task is evicted, all less urgent tasks of
    /// its class are too.
    fn evicts(&self, task: Urgency, view: &View) -> bool;

    /// The task's rank. Within a class a task of lower rank starts first; tasks of equal rank start
    /// in the order of arrival.
    fn rank(&self, task: &TaskSpec) -> u64 {
        u64::from(task.priority)
    }
}

/// One row of the policy table.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A description in one line, for help texts.
    pub about: &'static str,
    /// Creates the policy.
    pub make: fn() -> Box<dyn Policy>,
}

/// All policies.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry {
        name: "reset",
        about: "real-time tasks evict best-effort launches and less urgent real-time ones at once; evicted tasks \
                continue where they stopped once no more urgent task is left",
        make: || Box::new(reset::Reset),
    },
    PolicyEntry {
        name: "reef",
        about: "like reset, and best-effort blocks run on compute units that real-time launches leave idle",
        make: || Box::new(reef::Reef),
    },
    PolicyEntry {
        name: "streams",
        about: "every class has its own device queues and no task is evicted",
        make: || Box::new(streams::Streams),
    },
    PolicyEntry {
        name: "sequential",
        about: "one device queue, one task after the other, waiting real-time tasks first",
        make: || Box::new(sequential::Sequential),
    },
    PolicyEntry {
        name: "block-wait",
        about: "real-time tasks wait until the best-effort launches on the device have ended; no task is evicted",
        make: || Box::new(block_wait::BlockWait),
    },
    PolicyEntry {
        name: "edf",
        about: "like reset; the task with the earliest deadline is the most urgent one of its class",
        make: || Box::new(edf::Edf),
    },
    PolicyEntry {
        name: "rt-only",
        about: "best-effort tasks are refused; the baseline for real-time latency",
        make: || Box::new(rt_only::RtOnly),
    },
];

/// The default policy.
pub const POLICY_DEFAULT: &str = "reset";

/// The policy with a name.
pub fn policy_by_name(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// Queue 0 for real-time tasks, the others for best-effort tasks. If the device has one queue, both
/// classes use it.
fn own_queues(class: Class, view: &View) -> Range<u32> {
    match class {
        Class::RealTime => 0..1,
        Class::BestEffort if view.queues == 1 => 0..1,
        Class::BestEffort => 1..view.queues,
    }
}

/// Real-time queues, if there are enough for two: a task that evicts another real-time task then
/// issues at once, not behind the evicted launches.
const RT_QUEUES: u32 = 2;

/// How many of the device queues of a lane, from the first one on, a preemptive policy uses for
/// real-time tasks.
pub fn real_time_queues(queues: u32) -> u32 {
    if queues < 2 * RT_QUEUES { 1 } else { RT_QUEUES }
}

/// The first queues for real-time tasks, all others for best-effort tasks.
fn urgent_queues(class: Class, view: &View) -> Range<u32> {
    let real_time = real_time_queues(view.queues);
    match class {
        Class::RealTime => 0..real_time,
        Class::BestEffort if real_time < view.queues => real_time..view.queues,
        Class::BestEffort => own_queues(class, view),
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
    fn policies_that_preempt_do_so_by_rank() {
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
