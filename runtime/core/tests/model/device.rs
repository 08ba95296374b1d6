//! The device: launches in queues, blocks that run or leave, and what goes wrong with them.

use super::scenario::Aborts;
use super::{World, pick};
use atoll_core::limits::{ABORT_GRACE_NS, PADS_MAX};
use atoll_core::{Class, Epoch, LaunchEnd, LaunchId, Nanos, PreemptLevel, QueueId, Step, TaskId};
use std::collections::VecDeque;

/// How long the end of a launch may be kept back, and a raised epoch be overlooked, where that goes
/// wrong.
const LATE_NS_MAX: u64 = 3_000_000;

/// Blocks that run beside a launch of another task.
#[derive(Clone, Copy)]
pub(super) struct Rider {
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) first: u32,
    pub(super) blocks: u32,
    pub(super) epoch: Epoch,
}

#[derive(Clone)]
pub(super) struct Launch {
    pub(super) id: LaunchId,
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) epoch: Epoch,
    next_block: usize,
    /// A block has begun and is not through.
    is_midway: bool,
    evicted: bool,
    failed: bool,
    stuck: bool,
    pub(super) abort: bool,
    riders: Vec<Rider>,
}

/// A launch that ended.
pub(super) struct Ended {
    pub(super) launch: LaunchId,
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) epoch: Epoch,
    pub(super) end: LaunchEnd,
    /// Whose blocks ran beside it.
    pub(super) riders: Vec<TaskId>,
    /// When it may be told.
    pub(super) at: Nanos,
}

/// What the scheduler believes to know of the device.
#[derive(Default)]
pub(super) struct Device {
    /// Launches, per queue.
    pub(super) queues: Vec<VecDeque<Launch>>,
    /// Ends the scheduler has not been told of, per queue.
    pub(super) ended: Vec<VecDeque<Ended>>,
    /// Blocks that run beside the launch that comes next.
    pub(super) riders: Vec<Rider>,
    pub(super) capacity: u32,
    pub(super) is_lost: bool,
}

impl Device {
    pub(super) fn new(queues: u32, capacity: u32) -> Device {
        Device {
            queues: vec![VecDeque::new(); queues as usize],
            ended: (0..queues).map(|_| VecDeque::new()).collect(),
            capacity,
            ..Device::default()
        }
    }

    pub(super) fn forget_launches(&mut self) {
        self.is_lost = true;
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.ended.iter_mut().for_each(VecDeque::clear);
        self.riders.clear();
    }

    /// Launches that the scheduler has not been told the end of.
    pub(super) fn depth(&self, queue: usize) -> usize {
        self.queues[queue].len() + self.ended[queue].len()
    }
}

/// Whether what ran beside a launch that ended like that was cut short with it.
pub(super) fn is_cut(end: LaunchEnd) -> bool {
    matches!(end, LaunchEnd::Failed | LaunchEnd::Aborted)
}

impl World {
    pub(super) fn pad(&mut self, rider: Rider) {
        let is_first = !self.device.riders.iter().any(|other| other.task == rider.task);
        let truth = self.tasks.get_mut(&rider.task).expect("a task");
        assert!(self.policy.name == "reef" && truth.class == Class::BestEffort && is_first, "{:?} pads", rider.task);
        assert!(truth.prepared && truth.finished.is_none() && truth.in_flight == 0);
        assert!(truth.steps[rider.step as usize] == Step::Cuttable && truth.profiles[rider.step as usize].is_some());
        assert!(rider.blocks > 0 && (rider.first + rider.blocks) as usize <= truth.blocks[rider.step as usize].len());
        truth.riding += 1;
        self.device.riders.push(rider);
    }

    pub(super) fn issue(&mut self, id: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        self.totals.issued_launches += 1;
        self.totals.padding_blocks += self.device.riders.iter().map(|rider| u64::from(rider.blocks)).sum::<u64>();
        self.totals.padded_launches += u64::from(!self.device.riders.is_empty());
        if self.device.is_lost {
            return self.device.riders.clear();
        }
        self.judge_issue(task, step, queue);
        let stuck = self.scenario.faults.stuck_kernels.strikes(&mut self.rng);
        let riders = std::mem::take(&mut self.device.riders);
        let truth = self.truth(task);
        let may_be_padded = truth.class == Class::RealTime && truth.steps[step as usize] == Step::Cuttable;
        assert!(riders.is_empty() || may_be_padded && truth.profiles[step as usize].is_some());
        assert!(riders.len() <= PADS_MAX, "{} tasks run beside one launch", riders.len());
        truth.in_flight += 1;
        let queue = queue.0 as usize;
        self.device.queues[queue].push_back(Launch {
            id,
            task,
            step,
            epoch,
            next_block: 0,
            is_midway: false,
            evicted: false,
            failed: false,
            stuck,
            abort: false,
            riders,
        });
        assert!(self.device.depth(queue) <= self.device.capacity as usize, "a device queue is overfilled");
    }

    pub(super) fn abort(&mut self, launch: LaunchId, queue: QueueId) {
        assert_ne!(self.scenario.aborts, Aborts::Never, "the device cannot abort launches");
        let at = queue.0 as usize;
        if self.device.is_lost {
            return;
        }
        if let Some(ended) = self.device.ended[at].front() {
            // Its end is on its way.
            return assert_eq!(ended.launch, launch, "a launch is aborted that is not the oldest");
        }
        let oldest = self.device.queues[at].front_mut().expect("a launch that is aborted is in its queue");
        assert_eq!(oldest.id, launch, "a launch is aborted that is not the oldest");
        assert!(!std::mem::replace(&mut oldest.abort, true), "{launch:?} is aborted twice");
        let over_since = self.tasks[&oldest.task].over_since;
        assert!(
            over_since.is_some_and(|since| self.now.0 >= since.0 + ABORT_GRACE_NS),
            "{launch:?} is aborted too early"
        );
    }

    pub(super) fn raise_epoch(&mut self, task: TaskId, epoch: Epoch) {
        assert!(self.scenario.preempt_level >= PreemptLevel::Deactivate);
        let overlooked = self.scenario.faults.failing_resets.strikes(&mut self.rng);
        let at = Nanos(self.now.0 + if overlooked { self.rng.below(LATE_NS_MAX) } else { 0 });
        let truth = self.truth(task);
        assert!(truth.raised.is_raised_by(epoch), "an epoch goes back from {:?} to {epoch:?}", truth.raised);
        truth.raised = epoch;
        truth.stored.push_back((at, epoch));
    }

    /// The device sees raised epochs some time after they were stored.
    pub(super) fn see_epochs(&mut self) {
        for truth in self.tasks.values_mut() {
            if truth.stored.front().is_some_and(|&(at, _)| at <= self.now) {
                truth.word = truth.stored.pop_front().expect("looked at").1;
            }
        }
    }

    /// One block of the launch at the head of some queue starts, ends, or leaves.
    pub(super) fn run_block(&mut self) {
        let is_busy = |queue: &usize| !self.device.queues[*queue].is_empty();
        let Some(at) = pick(&mut self.rng, (0..self.device.queues.len()).filter(is_busy)) else { return };
        let fails = self.scenario.faults.failing_kernels.strikes(&mut self.rng);
        let launch = self.device.queues[at].front_mut().expect("not empty");
        let truth = self.tasks.get_mut(&launch.task).expect("a task");
        if launch.abort && self.scenario.aborts == Aborts::Late && self.rng.one_in(3) {
            truth.broken = true;
            return self.end_oldest(at, Some(LaunchEnd::Aborted));
        }
        assert!(truth.prepared, "a launch runs before its inputs are there");
        let blocks = &truth.blocks[launch.step as usize];
        let tells = !truth.tells_nothing(launch.step);
        let is_raised = truth.can_leave(launch.step) && launch.epoch.is_raised_by(truth.word);
        let can_stop = self.scenario.preempt_level == PreemptLevel::Interrupt && !truth.memory.is_in_place(launch.step);
        if launch.next_block < blocks.len() {
            let block = launch.next_block;
            let is_missing = !(tells && blocks[block]);
            match (is_raised, launch.is_midway) {
                (true, true) => {
                    // Stopped: what it wrote is there, and counts for nothing.
                    launch.evicted = tells;
                    self.totals.stopped_blocks += 1;
                }
                (true, false) => launch.evicted |= is_missing && tells,
                (false, false) if is_missing && !launch.failed && can_stop => {
                    launch.is_midway = true;
                    return truth.compute(launch.step, block);
                }
                (false, _) if is_missing && !launch.failed => {
                    if !launch.is_midway {
                        truth.compute(launch.step, block);
                    }
                    truth.blocks[launch.step as usize][block] = true;
                    launch.failed |= fails;
                    truth.broken |= fails;
                }
                (false, _) => {}
            }
            launch.is_midway = false;
            launch.next_block += 1;
        }
        let launch = &self.device.queues[at][0];
        if launch.next_block == self.tasks[&launch.task].blocks[launch.step as usize].len() && !launch.stuck {
            self.end_oldest(at, None);
        }
    }

    /// The oldest launch of a queue ends, by itself or by force.
    fn end_oldest(&mut self, at: usize, by_force: Option<LaunchEnd>) {
        let launch = self.device.queues[at].pop_front().expect("a launch");
        let end = by_force.unwrap_or(match (launch.failed, launch.evicted) {
            (true, _) => LaunchEnd::Failed,
            (_, true) => LaunchEnd::Evicted,
            _ => LaunchEnd::Complete,
        });
        for rider in &launch.riders {
            self.ride(rider, end);
        }
        let riders = launch.riders.iter().map(|rider| rider.task).collect();
        let is_late = self.scenario.faults.late_completions.strikes(&mut self.rng);
        let at_ns = self.now.0 + if is_late { self.rng.below(LATE_NS_MAX) } else { 0 };
        let ended = Ended {
            launch: launch.id,
            task: launch.task,
            step: launch.step,
            epoch: launch.epoch,
            end,
            riders,
            at: Nanos(at_ns),
        };
        self.device.ended[at].push_back(ended);
    }

    /// Blocks beside a launch run while it does; where that fails or is aborted, some of them.
    fn ride(&mut self, rider: &Rider, end: LaunchEnd) {
        let ran = if is_cut(end) { self.rng.below(u64::from(rider.blocks) + 1) as u32 } else { rider.blocks };
        let truth = self.truth(rider.task);
        assert!(truth.prepared && truth.in_flight == 0, "blocks beside launches of their own");
        let missing = |block: &usize| !truth.blocks[rider.step as usize][*block];
        let blocks: Vec<usize> = (rider.first..rider.first + ran).map(|block| block as usize).filter(missing).collect();
        if !rider.epoch.is_raised_by(truth.word) {
            blocks.into_iter().for_each(|block| truth.run(rider.step, block));
        }
        truth.cut_short += u32::from(is_cut(end));
    }
}
