//! The device: launches in queues, blocks that run or exit early, and faults.

use super::scenario::Aborts;
use super::{World, pick};
use atoll_core::limits::{ABORT_GRACE_NS, PADS_MAX};
use atoll_core::{Class, Epoch, LaunchEnd, LaunchId, Nanos, PreemptLevel, QueueId, Step, TaskId};
use std::collections::VecDeque;

/// Most time that the end of a launch is delayed, or a raised epoch is not seen, if that fault
/// happens.
const LATE_NS_MAX: u64 = 3_000_000;

/// Blocks co-scheduled in a launch of another task.
#[derive(Clone, Copy)]
pub(super) struct CoScheduled {
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
    /// A block has started and not ended.
    is_midway: bool,
    evicted: bool,
    failed: bool,
    stuck: bool,
    pub(super) abort: bool,
    co_scheduled: Vec<CoScheduled>,
}

/// A launch that ended.
pub(super) struct Ended {
    pub(super) launch: LaunchId,
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) epoch: Epoch,
    pub(super) end: LaunchEnd,
    /// Tasks whose blocks were co-scheduled in it.
    pub(super) co_scheduled: Vec<TaskId>,
    /// The earliest time to report it.
    pub(super) at: Nanos,
}

/// The device.
#[derive(Default)]
pub(super) struct Device {
    /// Launches, per queue.
    pub(super) queues: Vec<VecDeque<Launch>>,
    /// Ends not reported to the scheduler yet, per queue.
    pub(super) ended: Vec<VecDeque<Ended>>,
    /// Blocks co-scheduled in the next launch.
    pub(super) co_scheduled: Vec<CoScheduled>,
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
        self.co_scheduled.clear();
    }

    /// Launches whose end was not reported to the scheduler yet.
    pub(super) fn depth(&self, queue: usize) -> usize {
        self.queues[queue].len() + self.ended[queue].len()
    }
}

/// Whether blocks co-scheduled in a launch that ended like this may not have run.
pub(super) fn may_have_missed_blocks(end: LaunchEnd) -> bool {
    matches!(end, LaunchEnd::Failed | LaunchEnd::Aborted)
}

impl World {
    pub(super) fn pad(&mut self, pad: CoScheduled) {
        let is_first = !self.device.co_scheduled.iter().any(|other| other.task == pad.task);
        let oracle = self.tasks.get_mut(&pad.task).expect("a task");
        assert!(self.policy.name == "reef" && oracle.class == Class::BestEffort && is_first, "{:?} pads", pad.task);
        assert!(oracle.prepared && oracle.finished.is_none() && oracle.in_flight == 0);
        assert!(oracle.steps[pad.step as usize] == Step::Preemptible && oracle.profiles[pad.step as usize].is_some());
        assert!(pad.blocks > 0 && (pad.first + pad.blocks) as usize <= oracle.blocks[pad.step as usize].len());
        oracle.co_scheduled += 1;
        self.device.co_scheduled.push(pad);
    }

    pub(super) fn issue(&mut self, id: LaunchId, task: TaskId, step: u32, queue: QueueId, epoch: Epoch) {
        self.totals.issued_launches += 1;
        self.totals.padding_blocks += self.device.co_scheduled.iter().map(|pad| u64::from(pad.blocks)).sum::<u64>();
        self.totals.padded_launches += u64::from(!self.device.co_scheduled.is_empty());
        if self.device.is_lost {
            return self.device.co_scheduled.clear();
        }
        self.check_issue(task, step, queue);
        let stuck = self.scenario.faults.stuck_kernels.happens(&mut self.rng);
        let co_scheduled = std::mem::take(&mut self.device.co_scheduled);
        let oracle = self.oracle(task);
        let may_be_padded = oracle.class == Class::RealTime && oracle.steps[step as usize] == Step::Preemptible;
        assert!(co_scheduled.is_empty() || may_be_padded && oracle.profiles[step as usize].is_some());
        assert!(co_scheduled.len() <= PADS_MAX, "{} tasks run beside one launch", co_scheduled.len());
        oracle.in_flight += 1;
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
            co_scheduled,
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
            // It has ended, and its end will be reported.
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
        let overlooked = self.scenario.faults.failing_resets.happens(&mut self.rng);
        let at = Nanos(self.now.0 + if overlooked { self.rng.below(LATE_NS_MAX) } else { 0 });
        let oracle = self.oracle(task);
        assert!(oracle.raised.is_raised_by(epoch), "an epoch goes back from {:?} to {epoch:?}", oracle.raised);
        oracle.raised = epoch;
        oracle.stored.push_back((at, epoch));
    }

    /// The device sees raised epochs some time after they were stored.
    pub(super) fn see_epochs(&mut self) {
        for oracle in self.tasks.values_mut() {
            if oracle.stored.front().is_some_and(|&(at, _)| at <= self.now) {
                oracle.word = oracle.stored.pop_front().expect("looked at").1;
            }
        }
    }

    /// One block of the launch at the head of some queue starts, ends, or exits early.
    pub(super) fn run_block(&mut self) {
        let is_busy = |queue: &usize| !self.device.queues[*queue].is_empty();
        let Some(at) = pick(&mut self.rng, (0..self.device.queues.len()).filter(is_busy)) else { return };
        let fails = self.scenario.faults.failing_kernels.happens(&mut self.rng);
        let launch = self.device.queues[at].front_mut().expect("not empty");
        let oracle = self.tasks.get_mut(&launch.task).expect("a task");
        if launch.abort && self.scenario.aborts == Aborts::Late && self.rng.one_in(3) {
            oracle.broken = true;
            return self.end_oldest(at, Some(LaunchEnd::Aborted));
        }
        assert!(oracle.prepared, "a launch runs before its inputs are there");
        let blocks = &oracle.blocks[launch.step as usize];
        let reports_evictions = !oracle.is_restartable(launch.step);
        let is_raised = oracle.is_preemptible(launch.step) && launch.epoch.is_raised_by(oracle.word);
        let can_stop =
            self.scenario.preempt_level == PreemptLevel::Interrupt && !oracle.memory.is_in_place(launch.step);
        if launch.next_block < blocks.len() {
            let block = launch.next_block;
            let is_missing = !(reports_evictions && blocks[block]);
            match (is_raised, launch.is_midway) {
                (true, true) => {
                    // Stopped: its writes remain, but it is not complete.
                    launch.evicted = reports_evictions;
                    self.totals.stopped_blocks += 1;
                }
                (true, false) => launch.evicted |= is_missing && reports_evictions,
                (false, false) if is_missing && !launch.failed && can_stop => {
                    launch.is_midway = true;
                    return oracle.compute(launch.step, block);
                }
                (false, _) if is_missing && !launch.failed => {
                    if !launch.is_midway {
                        oracle.compute(launch.step, block);
                    }
                    oracle.blocks[launch.step as usize][block] = true;
                    launch.failed |= fails;
                    oracle.broken |= fails;
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
        for pad in &launch.co_scheduled {
            self.run_co_scheduled(pad, end);
        }
        let co_scheduled = launch.co_scheduled.iter().map(|pad| pad.task).collect();
        let is_late = self.scenario.faults.late_completions.happens(&mut self.rng);
        let at_ns = self.now.0 + if is_late { self.rng.below(LATE_NS_MAX) } else { 0 };
        let ended = Ended {
            launch: launch.id,
            task: launch.task,
            step: launch.step,
            epoch: launch.epoch,
            end,
            co_scheduled,
            at: Nanos(at_ns),
        };
        self.device.ended[at].push_back(ended);
    }

    /// Runs co-scheduled blocks as their launch ends; only some of them if it failed or was
    /// aborted.
    fn run_co_scheduled(&mut self, pad: &CoScheduled, end: LaunchEnd) {
        let ran =
            if may_have_missed_blocks(end) { self.rng.below(u64::from(pad.blocks) + 1) as u32 } else { pad.blocks };
        let oracle = self.oracle(pad.task);
        assert!(oracle.prepared && oracle.in_flight == 0, "blocks beside launches of their own");
        let missing = |block: &usize| !oracle.blocks[pad.step as usize][*block];
        let blocks: Vec<usize> = (pad.first..pad.first + ran).map(|block| block as usize).filter(missing).collect();
        if !pad.epoch.is_raised_by(oracle.word) {
            blocks.into_iter().for_each(|block| oracle.run(pad.step, block));
        }
        oracle.uncertain_launches += u32::from(may_have_missed_blocks(end));
    }
}
