//! Lanes that are opened and closed while tasks run in them.

use super::World;
use atoll_core::limits::DEVICE_QUEUES_MAX;
use atoll_core::{Event, LaneConfig, LaneError, LaneId, QueueId, Slice, TaskId, TaskSpec};
use std::ops::Range;

/// Lanes that are open at a time.
const LANES_MAX: usize = 5;

/// The truth about one lane.
pub(super) struct LaneTruth {
    /// Its device queues.
    pub(super) queues: Range<u32>,
    pub(super) paired_queues: bool,
    pub(super) is_closing: bool,
}

impl LaneTruth {
    pub(super) fn of_all(queues: u32, paired_queues: bool) -> LaneTruth {
        LaneTruth { queues: 0..queues << u32::from(paired_queues), paired_queues, is_closing: false }
    }

    /// The queues that the policy knows of.
    pub(super) fn policy_queues(&self) -> Range<u32> {
        let Range { start, end } = self.queues;
        start..end - if self.paired_queues { (end - start) / 2 } else { 0 }
    }
}

impl World {
    /// Whether a device queue belongs to a lane.
    pub(super) fn has_queue(&self, lane: LaneId, queue: QueueId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.queues.contains(&queue.0))
    }

    /// Whether a device queue is for second lines.
    pub(super) fn is_paired_queue(&self, queue: u32) -> bool {
        self.lanes.values().any(|lane| lane.queues.contains(&queue) && !lane.policy_queues().contains(&queue))
    }

    /// The slices of all lanes.
    pub(super) fn running_slices(&self) -> Vec<Slice> {
        self.lanes.keys().filter_map(|lane| self.scheduler.slice(*lane)).collect()
    }

    /// Any lane, also one that is being closed; where lanes do not come and go it is the default
    /// lane.
    pub(super) fn some_lane(&mut self) -> LaneId {
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        if lanes.len() == 1 { lanes[0] } else { lanes[self.rng.below(lanes.len() as u64) as usize] }
    }

    pub(super) fn change_lanes(&mut self) {
        if self.lanes.len() < LANES_MAX && self.rng.one_in(2) { self.open_lane() } else { self.close_lane() }
    }

    /// Opens a lane, or is refused: queues that others have, or that no device has, or a name that
    /// was there.
    fn open_lane(&mut self) {
        let lane = if self.rng.one_in(8) { self.some_lane() } else { LaneId(self.opened.0 + 1) };
        let first = self.rng.below(u64::from(DEVICE_QUEUES_MAX) + 1) as u32;
        let queues = first..first + self.rng.below(6) as u32;
        let compute_units = self.rng.below(u64::from(super::COMPUTE_UNITS) + 2) as u32;
        let paired_queues = self.scenario.paired_queues && self.rng.one_in(2);
        let config = LaneConfig { lane, queues: queues.clone(), paired_queues, compute_units };
        let is_taken = |queue: u32| self.lanes.values().any(|other| other.queues.contains(&queue));
        match self.scheduler.open_lane(&config) {
            Ok(()) => {
                assert!(
                    lane > self.opened && !queues.is_empty() && compute_units > 0 && !queues.clone().any(is_taken),
                    "{config:?} opens"
                );
                self.opened = lane;
                self.lanes.insert(lane, LaneTruth { queues, paired_queues, is_closing: false });
            }
            Err(LaneError::Taken(_)) => assert!(lane <= self.opened),
            Err(LaneError::Queues(_)) => assert!(queues.is_empty() || queues.end > DEVICE_QUEUES_MAX),
            Err(LaneError::PairedQueues(count)) => assert!(paired_queues && count == queues.len() && count % 2 == 1),
            Err(LaneError::QueueTaken(queue, owner)) => {
                assert!(self.has_queue(owner, queue) && queues.contains(&queue.0))
            }
            Err(LaneError::ComputeUnits { wanted, of }) => {
                assert!(wanted == compute_units && !(1..=of).contains(&wanted))
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn close_lane(&mut self) {
        let lane = if self.rng.one_in(8) {
            LaneId(self.rng.below(u64::from(self.opened.0) + 2) as u32)
        } else {
            self.some_lane()
        };
        let mut actions = Vec::new();
        let expected = match self.lanes.get(&lane) {
            _ if lane == LaneId::DEFAULT => Err(LaneError::Default),
            None => Err(LaneError::Unknown(lane)),
            Some(truth) if truth.is_closing => Err(LaneError::Closing(lane)),
            Some(_) => Ok(()),
        };
        assert_eq!(self.scheduler.close_lane(self.now, lane, &mut actions), expected);
        if expected.is_ok() {
            self.lanes.get_mut(&lane).expect("looked at").is_closing = true;
            self.heard = Some(lane);
            self.carry_all_out(actions);
        }
    }

    pub(super) fn lane_closed(&mut self, lane: LaneId) {
        let closed = self.lanes.remove(&lane).expect("a lane is closed once");
        assert!(closed.is_closing, "lane {} is closed and nobody asked for it", lane.0);
        assert!(
            closed.queues.clone().all(|queue| self.device.depth(queue as usize) == 0),
            "launches are left in lane {}",
            lane.0
        );
        assert!(
            !self.tasks.values().any(|truth| truth.finished.is_none() && truth.lane == lane),
            "tasks are left in lane {}",
            lane.0
        );
        self.totals.closed_lanes += 1;
    }

    /// The lane that an event is for; `None` for all of them.
    pub(super) fn hears(&self, event: &Event) -> Option<LaneId> {
        match event {
            Event::TaskArrived(TaskSpec { task, .. })
            | Event::TaskReady { task }
            | Event::TaskUnready { task }
            | Event::TaskPrepared { task }
            | Event::TaskFailed { task }
            | Event::HostStepDone { task, .. }
            // Of a task that is gone no lane knows.
            | Event::CancelTask { task } => Some(Some(&self.tasks[task]).filter(|truth| truth.finished.is_none()).map_or(LaneId::DEFAULT, |truth| truth.lane)),
            Event::LaunchEnded { .. } => self.heard_end,
            Event::DeviceLost | Event::Tick => None,
        }
    }

    /// Tasks leave lanes that are being closed, for the default lane, and only while nothing of
    /// them is under way.
    pub(super) fn judge_moves(&mut self) {
        let World { scheduler, tasks, lanes, totals, now, .. } = self;
        for (&id, truth) in tasks.iter_mut().filter(|(_, truth)| truth.finished.is_none()) {
            if truth.deadline.is_some_and(|at| at <= *now) && scheduler.is_ending(id) {
                // Its lane heard of the time with something else.
                truth.over_since.get_or_insert(*now);
            }
            let Some(lane) = scheduler.lane_of(id).filter(|lane| *lane != truth.lane) else { continue };
            assert!(
                lane == LaneId::DEFAULT && lanes.get(&truth.lane).is_some_and(|lane| lane.is_closing),
                "{id:?} moves to lane {}",
                lane.0
            );
            assert!(!truth.is_served(), "{id:?} moves while something of it is under way");
            totals.moved += 1;
            totals.moved_midway += u64::from(truth.complete.contains(&true));
            truth.lane = lane;
        }
    }

    /// All lanes can be closed at the end, and then everything is as it was at the beginning.
    pub(super) fn close_all_lanes(&mut self) {
        let open: Vec<LaneId> = self.lanes.iter().filter(|(_, lane)| !lane.is_closing).map(|(id, _)| *id).collect();
        for lane in open.into_iter().filter(|lane| *lane != LaneId::DEFAULT) {
            let mut actions = Vec::new();
            self.scheduler.close_lane(self.now, lane, &mut actions).expect("it is open");
            self.lanes.get_mut(&lane).expect("it is open").is_closing = true;
            self.heard = Some(lane);
            self.carry_all_out(actions);
        }
        assert_eq!(self.lanes.len(), 1, "lanes are left");
        let all: Vec<_> = self.scheduler.lanes().collect();
        assert!(
            all.len() == 1
                && all[0].config.queues == LaneTruth::of_all(self.scenario.queues, self.scenario.paired_queues).queues,
            "{all:?}"
        );
        assert_eq!(self.scheduler.lane_of(TaskId(0)), None);
    }
}
