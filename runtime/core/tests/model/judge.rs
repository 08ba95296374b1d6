//! What must be true, whatever goes wrong.
//!
//! What a real-time task waits for, at most, before its first launch is issued (and with it, how
//! long):
//!
//! | policy | waits for | so its delay is |
//! |---|---|---|
//! | `reset`, `reef`, `edf` | nothing: every best-effort launch, and every real-time one of higher rank, that can leave has been told to | what the device takes to drain: by block at
//! `Deactivate`, less at `Interrupt`; at `Block`, what is in the device queues |
//! | `block-wait` | the best-effort launches in the device queues when it arrived | queues × capacity launches |
//! | `sequential` | the tasks that started before it | their remaining steps |
//! | `streams` | nothing | the device shares itself between the queues |
//! | `rt-only` | nothing | none |
//!
//! It waits besides for real-time tasks of its own or a lower rank, and for room in a real-time
//! queue: all of these are full of launches that have yet to end. Where the scheduler has a bound
//! on what best-effort work is spared, it waits for the slice of one best-effort task, once in that
//! time.

use super::scenario::Aborts;
use super::truth::Truth;
use super::{BE_TASKS, RT_TASKS, World};
use atoll_core::limits::ABORT_GRACE_NS;
use atoll_core::{BEST_EFFORT_SLICE_DIVISOR, Class, LaneId, Nanos, Outcome, PreemptLevel, QueueId, Slice, TaskId};

/// Policies under which best-effort tasks issue nothing beside real-time ones, and those under
/// which they have to leave.
const EXCLUSIVE: [&str; 4] = ["reset", "reef", "edf", "block-wait"];
const EVICTING: [&str; 3] = ["reset", "reef", "edf"];

/// What is known of slices of best-effort work.
#[derive(Default)]
pub(super) struct Slices {
    /// Best-effort work got somewhere by the event that is being told.
    pub(super) is_fed: bool,
    /// Since when it gets nowhere.
    hungry_since: Nanos,
    last: Option<Slice>,
    count: u64,
    /// Nobody was in its way after the event before.
    was_idle: bool,
    /// The slices there were when the action was decided that is being carried out. It may be over
    /// since: what is carried out before it can be answered, and the scheduler decides anew.
    pub(super) at_decision: Vec<Slice>,
}

impl World {
    fn has_slice(&self, task: TaskId) -> bool {
        self.running_slices().iter().any(|slice| slice.task == task)
    }

    /// The same when the action was decided that is being carried out.
    fn had_slice(&self, task: TaskId) -> bool {
        self.slices.at_decision.iter().any(|slice| slice.task == task)
    }

    /// Best-effort work gets a slice as soon as it got nowhere for as long as is allowed, and not
    /// before; and that is over in time. Where lanes come and go this is not judged: what is
    /// hungry changes with the tasks that move.
    pub(super) fn judge_slices(&mut self) {
        if self.scenario.lanes {
            return;
        }
        let (now, slice, last) = (self.now, self.scheduler.slice(LaneId::DEFAULT), self.slices.last);
        let Some(wait_ns) = self.scenario.best_effort_wait_ns_max else { return assert_eq!(slice, None) };
        let starves =
            self.is_wanted(LaneId::DEFAULT, Class::RealTime) && self.is_wanted(LaneId::DEFAULT, Class::BestEffort);
        let could_run = |(_, truth): (_, &Truth)| truth.wants_the_device() && truth.over_since.is_none();
        let has_somebody = self.of_class(LaneId::DEFAULT, Class::BestEffort).any(could_run);
        if self.slices.was_idle {
            self.slices.hungry_since = now;
        }
        let is_over = now.0 >= self.slices.hungry_since.0 + wait_ns && !self.slices.is_fed;
        let is_new = slice.is_some_and(|slice| last.is_none_or(|last| last.task != slice.task));
        assert!(!is_new || is_over, "a slice after {} ns", now.0 - self.slices.hungry_since.0);
        let count = self.scheduler.counters().best_effort_slices;
        // One that ends with its task may come and go with one event.
        let has_one = slice.is_some() || last.is_some() || count > self.slices.count;
        let is_spared = has_one || !starves || self.slices.is_fed;
        assert!(is_spared || !is_over || !has_somebody, "best-effort work starves");
        if let Some(until) = slice.and_then(|slice| slice.until) {
            assert!(
                now < until && until.0 <= now.0 + wait_ns / BEST_EFFORT_SLICE_DIVISOR,
                "a slice goes on for too long"
            );
        }
        if has_one || !starves || self.slices.is_fed || is_over {
            self.slices.hungry_since = now;
        }
        self.slices =
            Slices { is_fed: false, last: slice, count, was_idle: !starves, ..std::mem::take(&mut self.slices) };
    }

    /// The tasks of a class in a lane.
    fn of_class(&self, lane: LaneId, class: Class) -> impl Iterator<Item = (&TaskId, &Truth)> {
        self.tasks.iter().filter(move |(_, truth)| truth.class == class && truth.lane == lane)
    }

    fn is_wanted(&self, lane: LaneId, class: Class) -> bool {
        self.of_class(lane, class).any(|(_, truth)| truth.wants_the_device())
    }

    /// The rank of the most urgent real-time task that could run.
    fn rt_first(&self, lane: LaneId) -> Option<u64> {
        self.of_class(lane, Class::RealTime)
            .filter(|(_, truth)| truth.wants_the_device())
            .map(|(_, truth)| truth.rank)
            .min()
    }

    fn evicts(&self) -> bool {
        EVICTING.contains(&self.policy.name)
    }

    /// A launch may be issued now.
    pub(super) fn judge_issue(&self, task: TaskId, step: u32, queue: QueueId) {
        let truth = &self.tasks[&task];
        assert!(truth.prepared && truth.finished.is_none() && truth.riding == 0 && truth.host_step.is_none());
        assert!(!truth.complete[step as usize], "step {step} of {task:?} is issued again although it is complete");
        let is_elsewhere = |other: &u32| *other != queue.0;
        let elsewhere = (0..self.device.queues.len() as u32)
            .filter(is_elsewhere)
            .flat_map(|other| &self.device.queues[other as usize]);
        let goes_beside =
            |other: u32| truth.forks.iter().any(|fork| [other, step].iter().all(|step| fork.steps().contains(step)));
        let is_apart = elsewhere.filter(|launch| launch.task == task).all(|launch| goes_beside(launch.step));
        assert!(is_apart, "launches of {task:?} are in two queues, and step {step} is behind them");
        let lane = truth.lane;
        assert!(self.has_queue(lane, queue), "a launch of a task in lane {} is issued into queue {}", lane.0, queue.0);
        assert!(!self.lanes[&lane].is_closing, "a launch is issued in lane {}, which is being closed", lane.0);
        let in_queue = &self.device.queues[queue.0 as usize];
        assert!(!in_queue.iter().any(|other| other.task == task && other.step == step), "a step is twice in a queue");
        let policy = self.policy.name;
        match truth.class {
            Class::BestEffort => {
                assert_ne!(policy, "rt-only", "a best-effort launch is issued");
                let is_exclusive = EXCLUSIVE.contains(&policy) && self.is_wanted(lane, Class::RealTime);
                assert!(
                    !is_exclusive || self.had_slice(task),
                    "a best-effort launch is issued beside a real-time task"
                );
            }
            Class::RealTime => {
                let in_flight = self.of_class(lane, Class::BestEffort).any(|(_, truth)| truth.in_flight > 0);
                assert!(policy != "block-wait" || !in_flight, "a real-time launch is issued beside best-effort ones");
                let is_first = self.rt_first(lane).is_some_and(|first| truth.rank <= first);
                assert!(!self.evicts() || is_first, "a real-time launch is issued beside a more urgent task");
            }
        }
    }

    /// What must be true between any two events.
    pub(super) fn judge(&self) {
        let unfinished = self.tasks.values().filter(|truth| truth.finished.is_none()).count();
        assert_eq!(unfinished, self.scheduler.task_count(), "tasks are lost or kept");
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

    /// What must be true once the scheduler has heard of something and all of its actions were
    /// carried out.
    pub(super) fn judge_answer(&self) {
        if self.device.is_lost {
            return;
        }
        for &lane in self.lanes.keys().filter(|lane| !self.lanes[lane].is_closing && self.has_heard(**lane)) {
            self.judge_progress(lane, Class::RealTime);
            self.judge_progress(lane, Class::BestEffort);
        }
        self.judge_evictions();
        self.judge_aborts();
        self.judge_closing();
    }

    /// In a lane that is being closed is only what the device or the host works on; everything else
    /// has moved.
    fn judge_closing(&self) {
        for (id, truth) in self.tasks.iter().filter(|(_, truth)| truth.finished.is_none()) {
            assert!(
                !self.lanes[&truth.lane].is_closing || truth.is_served(),
                "{id:?} keeps lane {} from being closed",
                truth.lane.0
            );
        }
    }

    /// Whether a lane heard of the last event, and so of the time.
    fn has_heard(&self, lane: LaneId) -> bool {
        self.heard.is_none_or(|heard| heard == lane)
    }

    fn is_served(&self, (id, truth): (&TaskId, &Truth)) -> bool {
        truth.finished.is_none() && (truth.is_served() || self.preparing.contains(id))
    }

    /// Tasks of a class that could run make progress, or others do for whom they have to wait.
    fn judge_progress(&self, lane: LaneId, class: Class) {
        let policy = self.policy.name;
        let first = self.rt_first(lane).filter(|_| self.evicts() && class == Class::RealTime);
        let mut first = self
            .of_class(lane, class)
            .filter(|(_, truth)| truth.wants_the_device() && first.is_none_or(|rank| truth.rank == rank));
        if !self.is_wanted(lane, class) || first.any(|task| self.is_served(task)) {
            return;
        }
        let serves = |class| self.of_class(lane, class).any(|task| self.is_served(task));
        let queues = self.lanes[&lane].policy_queues();
        let shares_queue = queues.len() == 1 || policy == "sequential";
        let rt_queues = if self.evicts() && queues.len() >= 4 { 2 } else { 1 };
        let is_full = |queue| self.device.depth(queue as usize) >= self.device.capacity as usize;
        // A task that was moved has its queue before there is room in it, and keeps it.
        let mut rt_queues = queues.take(rt_queues);
        let are_full = if self.totals.moved > 0 { rt_queues.any(is_full) } else { rt_queues.all(is_full) };
        let has_to_wait = match class {
            Class::RealTime => {
                are_full
                    || self.scheduler.slice(lane).is_some_and(|slice| slice.until.is_some())
                    || (shares_queue || policy == "block-wait") && serves(Class::BestEffort)
            }
            Class::BestEffort if EXCLUSIVE.contains(&policy) => self.is_wanted(lane, Class::RealTime),
            Class::BestEffort => shares_queue && serves(Class::RealTime),
        };
        assert!(has_to_wait, "{class} tasks are there, and nothing is done for them under {policy}");
    }

    /// While a real-time task is there, everything that can leave for it has been told to; and so
    /// has everything that nobody wants any more.
    fn judge_evictions(&self) {
        if self.scenario.preempt_level < PreemptLevel::Deactivate {
            return;
        }
        for launch in self.device.queues.iter().flatten() {
            let truth = &self.tasks[&launch.task];
            let lane = truth.lane;
            if !self.has_heard(lane) {
                continue;
            }
            let first = self.rt_first(lane).filter(|_| self.evicts());
            let is_outranked = first.is_some_and(|first| match truth.class {
                Class::RealTime => truth.rank > first,
                Class::BestEffort => !self.has_slice(launch.task),
            });
            let has_to_leave = is_outranked || truth.over_since.is_some() || self.lanes[&lane].is_closing;
            let stays = has_to_leave && truth.can_leave(launch.step) && !launch.epoch.is_raised_by(truth.raised);
            assert!(!stays, "{:?} was not told to leave", launch.id);
        }
    }

    /// A launch at the head of its queue whose task has been over for the time of grace has been
    /// told to end.
    fn judge_aborts(&self) {
        let has_grace = |since: Nanos| self.now.0 <= since.0 + ABORT_GRACE_NS;
        let heads = self.device.queues.iter().zip(&self.device.ended).filter(|(_, ended)| ended.is_empty());
        for launch in heads.filter_map(|(queue, _)| queue.front()) {
            let is_told = launch.abort || self.scenario.aborts == Aborts::Never;
            let Truth { over_since, lane, .. } = self.tasks[&launch.task];
            assert!(
                !self.has_heard(lane) || is_told || over_since.is_none_or(has_grace),
                "{:?} goes on although {:?} is over",
                launch.id,
                launch.task
            );
        }
    }

    /// What the scheduler counted is what happened.
    pub(super) fn judge_counters(&self) {
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

    /// A task is over.
    pub(super) fn judge_finish(&self, task: TaskId, outcome: Outcome) {
        let truth = &self.tasks[&task];
        assert_eq!(truth.finished, None, "{task:?} ends twice");
        assert_eq!((truth.in_flight, truth.riding), (0, 0), "{task:?} ends while the device may touch its memory");
        assert_eq!(truth.host_step, None, "{task:?} ends while the host may touch its memory");
        let is_refused = self.policy.name == "rt-only" && truth.class == Class::BestEffort;
        match outcome {
            Outcome::Complete => {
                assert!(!truth.broken, "{task:?} is complete although some of it was computed from nothing");
                assert!(truth.is_done(), "{task:?} is complete without all of its blocks");
            }
            Outcome::Refused => assert!(is_refused, "{task:?} is refused"),
            Outcome::Cancelled => assert!(truth.over_since.is_some(), "{task:?} is cancelled"),
            Outcome::DeadlineExceeded => {
                assert!(truth.deadline.is_some_and(|at| at <= self.now), "{task:?} is not late")
            }
            Outcome::QueueFull => panic!("the queues are large enough"),
            Outcome::Failed | Outcome::DeviceLost => {}
        }
    }
}
