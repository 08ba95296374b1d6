//! Invariants of the scheduler, which hold under all faults.
//!
//! The most that a real-time task may wait for before its first launch is issued:
//!
//! | policy | waits for | its delay |
//! |---|---|---|
//! | `reset`, `reef`, `edf` | nothing: less urgent launches are evicted | the drain time (below) |
//! | `block-wait` | best-effort launches in the device queues | queues × capacity launches |
//! | `sequential` | the tasks that started before it | their remaining steps |
//! | `streams` | nothing | the device shares itself between the queues |
//! | `rt-only` | nothing | none |
//!
//! The drain time is that of one block at `Deactivate`, less at `Interrupt`; at `Block`, that of
//! everything in the device queues.
//!
//! A real-time task also waits for real-time tasks of its own or a lower rank, and for room in a
//! real-time queue if all of these are full of launches in flight. If the scheduler bounds the
//! starvation of best-effort work, it waits for the slice of one best-effort task, at most once per
//! bound.

use super::oracle::Oracle;
use super::scenario::Aborts;
use super::{BE_TASKS, RT_TASKS, World};
use atoll_core::limits::ABORT_GRACE_NS;
use atoll_core::{BEST_EFFORT_SLICE_DIVISOR, Class, LaneId, Nanos, Outcome, PreemptLevel, QueueId, Slice, TaskId};

/// Policies under which best-effort tasks issue nothing beside real-time ones, and policies under
/// which they are evicted.
const EXCLUSIVE: [&str; 4] = ["reset", "reef", "edf", "block-wait"];
const EVICTING: [&str; 3] = ["reset", "reef", "edf"];

/// The expected state of best-effort slices.
#[derive(Default)]
pub(super) struct Slices {
    /// The event being handled is progress of best-effort work.
    pub(super) made_progress: bool,
    /// Since when best-effort work has made no progress.
    stalled_since: Nanos,
    last: Option<Slice>,
    count: u64,
    /// After the previous event no real-time task blocked best-effort tasks.
    was_idle: bool,
    /// The slices at the time when the action being carried out was decided. They may be over
    /// since: earlier actions are answered first, and the scheduler decides again.
    pub(super) at_decision: Vec<Slice>,
}

impl World {
    fn has_slice(&self, task: TaskId) -> bool {
        self.running_slices().iter().any(|slice| slice.task == task)
    }

    /// Whether the task had a slice when the action being carried out was decided.
    fn had_slice(&self, task: TaskId) -> bool {
        self.slices.at_decision.iter().any(|slice| slice.task == task)
    }

    /// Best-effort work gets a slice as soon as it made no progress for the whole bound, and not
    /// before; and the slice ends in time. Not checked while lanes open and close, since moving
    /// tasks change which work is starved.
    pub(super) fn check_slices(&mut self) {
        if self.scenario.lanes {
            return;
        }
        let (now, slice, last) = (self.now, self.scheduler.slice(LaneId::DEFAULT), self.slices.last);
        let Some(wait_ns) = self.scenario.best_effort_wait_ns_max else { return assert_eq!(slice, None) };
        let starves = self.has_runnable(LaneId::DEFAULT, Class::RealTime)
            && self.has_runnable(LaneId::DEFAULT, Class::BestEffort);
        let could_run = |(_, oracle): (_, &Oracle)| oracle.is_runnable() && oracle.over_since.is_none();
        let has_runnable = self.of_class(LaneId::DEFAULT, Class::BestEffort).any(could_run);
        if self.slices.was_idle {
            self.slices.stalled_since = now;
        }
        let is_over = now.0 >= self.slices.stalled_since.0 + wait_ns && !self.slices.made_progress;
        let is_new = slice.is_some_and(|slice| last.is_none_or(|last| last.task != slice.task));
        assert!(!is_new || is_over, "a slice after {} ns", now.0 - self.slices.stalled_since.0);
        let count = self.scheduler.counters().best_effort_slices;
        // A slice that ends with its task may begin and end within one event.
        let has_one = slice.is_some() || last.is_some() || count > self.slices.count;
        let is_allowed = has_one || !starves || self.slices.made_progress;
        assert!(is_allowed || !is_over || !has_runnable, "best-effort work starves");
        if let Some(until) = slice.and_then(|slice| slice.until) {
            assert!(
                now < until && until.0 <= now.0 + wait_ns / BEST_EFFORT_SLICE_DIVISOR,
                "a slice goes on for too long"
            );
        }
        if has_one || !starves || self.slices.made_progress || is_over {
            self.slices.stalled_since = now;
        }
        self.slices =
            Slices { made_progress: false, last: slice, count, was_idle: !starves, ..std::mem::take(&mut self.slices) };
    }

    /// The tasks of a class in a lane.
    fn of_class(&self, lane: LaneId, class: Class) -> impl Iterator<Item = (&TaskId, &Oracle)> {
        self.tasks.iter().filter(move |(_, oracle)| oracle.class == class && oracle.lane == lane)
    }

    fn has_runnable(&self, lane: LaneId, class: Class) -> bool {
        self.of_class(lane, class).any(|(_, oracle)| oracle.is_runnable())
    }

    /// The rank of the most urgent real-time task that is ready.
    fn rt_first(&self, lane: LaneId) -> Option<u64> {
        self.of_class(lane, Class::RealTime)
            .filter(|(_, oracle)| oracle.is_runnable())
            .map(|(_, oracle)| oracle.rank)
            .min()
    }

    fn evicts(&self) -> bool {
        EVICTING.contains(&self.policy.name)
    }

    /// Checks that a launch may be issued now.
    pub(super) fn check_issue(&self, task: TaskId, step: u32, queue: QueueId) {
        let oracle = &self.tasks[&task];
        assert!(oracle.prepared && oracle.finished.is_none() && oracle.co_scheduled == 0 && oracle.host_step.is_none());
        assert!(!oracle.complete[step as usize], "step {step} of {task:?} is issued again although it is complete");
        let is_elsewhere = |other: &u32| *other != queue.0;
        let elsewhere = (0..self.device.queues.len() as u32)
            .filter(is_elsewhere)
            .flat_map(|other| &self.device.queues[other as usize]);
        let goes_beside =
            |other: u32| oracle.forks.iter().any(|fork| [other, step].iter().all(|step| fork.steps().contains(step)));
        let is_apart = elsewhere.filter(|launch| launch.task == task).all(|launch| goes_beside(launch.step));
        assert!(is_apart, "launches of {task:?} are in two queues, and step {step} is behind them");
        let lane = oracle.lane;
        assert!(self.has_queue(lane, queue), "a launch of a task in lane {} is issued into queue {}", lane.0, queue.0);
        assert!(!self.lanes[&lane].is_closing, "a launch is issued in lane {}, which is being closed", lane.0);
        let in_queue = &self.device.queues[queue.0 as usize];
        assert!(!in_queue.iter().any(|other| other.task == task && other.step == step), "a step is in a queue twice");
        let policy = self.policy.name;
        match oracle.class {
            Class::BestEffort => {
                assert_ne!(policy, "rt-only", "a best-effort launch is issued");
                let is_exclusive = EXCLUSIVE.contains(&policy) && self.has_runnable(lane, Class::RealTime);
                assert!(
                    !is_exclusive || self.had_slice(task),
                    "a best-effort launch is issued beside a real-time task"
                );
            }
            Class::RealTime => {
                let in_flight = self.of_class(lane, Class::BestEffort).any(|(_, oracle)| oracle.in_flight > 0);
                assert!(policy != "block-wait" || !in_flight, "a real-time launch is issued beside best-effort ones");
                let is_first = self.rt_first(lane).is_some_and(|first| oracle.rank <= first);
                assert!(!self.evicts() || is_first, "a real-time launch is issued beside a more urgent task");
            }
        }
    }

    /// Checks what must hold between any two events.
    pub(super) fn check(&self) {
        let unfinished = self.tasks.values().filter(|oracle| oracle.finished.is_none()).count();
        assert_eq!(unfinished, self.scheduler.task_count(), "a task was lost, or kept after its end");
        for (at, queue) in self.device.queues.iter().enumerate() {
            assert_eq!(
                self.device.depth(at),
                self.scheduler.device_queue_depth(QueueId(at as u32)),
                "launches are lost"
            );
            for (ahead, behind) in queue.iter().zip(queue.iter().skip(1)) {
                let follows = behind.task != ahead.task || self.tasks[&ahead.task].may_follow(behind.step, ahead.step);
                assert!(follows, "steps {} and {} in one queue", ahead.step, behind.step);
            }
        }
    }

    /// Checks what must hold once the scheduler has handled an event and all of its actions were
    /// carried out.
    pub(super) fn check_answer(&self) {
        if self.device.is_lost {
            return;
        }
        for &lane in self.lanes.keys().filter(|lane| !self.lanes[lane].is_closing && self.was_notified(**lane)) {
            self.check_progress(lane, Class::RealTime);
            self.check_progress(lane, Class::BestEffort);
        }
        self.check_evictions();
        self.check_aborts();
        self.check_closing();
    }

    /// A closing lane only has tasks that the device or the host is working on; all others have
    /// moved.
    fn check_closing(&self) {
        for (id, oracle) in self.tasks.iter().filter(|(_, oracle)| oracle.finished.is_none()) {
            assert!(
                !self.lanes[&oracle.lane].is_closing || oracle.is_served(),
                "{id:?} keeps lane {} from being closed",
                oracle.lane.0
            );
        }
    }

    /// Whether a lane got the last event, and thereby the current time.
    fn was_notified(&self, lane: LaneId) -> bool {
        self.notified.is_none_or(|notified| notified == lane)
    }

    fn is_served(&self, (id, oracle): (&TaskId, &Oracle)) -> bool {
        oracle.finished.is_none() && (oracle.is_served() || self.preparing.contains(id))
    }

    /// Tasks of a class that are ready make progress, unless they have to wait for other tasks.
    fn check_progress(&self, lane: LaneId, class: Class) {
        let policy = self.policy.name;
        let first = self.rt_first(lane).filter(|_| self.evicts() && class == Class::RealTime);
        let mut first = self
            .of_class(lane, class)
            .filter(|(_, oracle)| oracle.is_runnable() && first.is_none_or(|rank| oracle.rank == rank));
        if !self.has_runnable(lane, class) || first.any(|task| self.is_served(task)) {
            return;
        }
        let serves = |class| self.of_class(lane, class).any(|task| self.is_served(task));
        let queues = self.lanes[&lane].policy_queues();
        let shares_queue = queues.len() == 1 || policy == "sequential";
        let rt_queues = if self.evicts() && queues.len() >= 4 { 2 } else { 1 };
        let is_full = |queue| self.device.depth(queue as usize) >= self.device.capacity as usize;
        // A task that was moved is bound to a queue even without room in it, and stays there.
        let mut rt_queues = queues.take(rt_queues);
        let are_full = if self.totals.moved > 0 { rt_queues.any(is_full) } else { rt_queues.all(is_full) };
        let has_to_wait = match class {
            Class::RealTime => {
                are_full
                    || self.scheduler.slice(lane).is_some_and(|slice| slice.until.is_some())
                    || (shares_queue || policy == "block-wait") && serves(Class::BestEffort)
            }
            Class::BestEffort if EXCLUSIVE.contains(&policy) => self.has_runnable(lane, Class::RealTime),
            Class::BestEffort => shares_queue && serves(Class::RealTime),
        };
        assert!(has_to_wait, "{class} tasks are ready and make no progress under {policy}");
    }

    /// While a real-time task is present, every preemptible launch of lower urgency is evicted; and
    /// so are the launches of tasks that are over.
    fn check_evictions(&self) {
        if self.scenario.preempt_level < PreemptLevel::Deactivate {
            return;
        }
        for launch in self.device.queues.iter().flatten() {
            let oracle = &self.tasks[&launch.task];
            let lane = oracle.lane;
            if !self.was_notified(lane) {
                continue;
            }
            let first = self.rt_first(lane).filter(|_| self.evicts());
            let is_outranked = first.is_some_and(|first| match oracle.class {
                Class::RealTime => oracle.rank > first,
                Class::BestEffort => !self.has_slice(launch.task),
            });
            let is_to_be_evicted = is_outranked || oracle.over_since.is_some() || self.lanes[&lane].is_closing;
            let stays =
                is_to_be_evicted && oracle.is_preemptible(launch.step) && !launch.epoch.is_raised_by(oracle.raised);
            assert!(!stays, "{:?} was not evicted", launch.id);
        }
    }

    /// The launch at the head of a queue is aborted once its task has been over for the grace time.
    fn check_aborts(&self) {
        let has_grace = |since: Nanos| self.now.0 <= since.0 + ABORT_GRACE_NS;
        let heads = self.device.queues.iter().zip(&self.device.ended).filter(|(_, ended)| ended.is_empty());
        for launch in heads.filter_map(|(queue, _)| queue.front()) {
            let is_aborting = launch.abort || self.scenario.aborts == Aborts::Never;
            let Oracle { over_since, lane, .. } = self.tasks[&launch.task];
            assert!(
                !self.was_notified(lane) || is_aborting || over_since.is_none_or(has_grace),
                "{:?} goes on although {:?} is over",
                launch.id,
                launch.task
            );
        }
    }

    /// The scheduler's counters match what happened.
    pub(super) fn check_counters(&self) {
        let (counted, seen) = (self.scheduler.counters(), &self.totals);
        assert_eq!(counted.issued_launches, seen.issued_launches);
        assert_eq!((counted.padded_launches, counted.padding_blocks), (seen.padded_launches, seen.padding_blocks));
        assert_eq!(
            (counted.evicted_launches, counted.repeated_launches),
            (seen.evicted_launches, seen.repeated_launches)
        );
        assert_eq!((counted.aborted_launches, counted.preemptions), (seen.aborted_launches, seen.preemptions));
        assert_eq!((counted.arrived, counted.finished), ([RT_TASKS, BE_TASKS], [RT_TASKS, BE_TASKS]));
    }

    /// Checks that a task may finish with an outcome.
    pub(super) fn check_finish(&self, task: TaskId, outcome: Outcome) {
        let oracle = &self.tasks[&task];
        assert_eq!(oracle.finished, None, "{task:?} ends twice");
        assert_eq!(
            (oracle.in_flight, oracle.co_scheduled),
            (0, 0),
            "{task:?} ends while the device may touch its memory"
        );
        assert_eq!(oracle.host_step, None, "{task:?} ends while the host may touch its memory");
        let is_refused = self.policy.name == "rt-only" && oracle.class == Class::BestEffort;
        match outcome {
            Outcome::Complete => {
                assert!(!oracle.broken, "{task:?} is complete although it computed from incomplete inputs");
                assert!(oracle.is_done(), "{task:?} is complete without all of its blocks");
            }
            Outcome::Refused => assert!(is_refused, "{task:?} is refused"),
            Outcome::Cancelled => assert!(oracle.over_since.is_some(), "{task:?} is cancelled"),
            Outcome::DeadlineExceeded => {
                assert!(oracle.deadline.is_some_and(|at| at <= self.now), "{task:?} is not late")
            }
            Outcome::QueueFull => panic!("the queues are large enough"),
            Outcome::Failed | Outcome::DeviceLost => {}
        }
    }
}
