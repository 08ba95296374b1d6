//! Lanes that open and close while tasks run in them.

use super::World;
use atoll_core::limits::DEVICE_QUEUES_MAX;
use atoll_core::{Event, LaneConfig, LaneError, LaneId, QueueId, Slice, TaskId, TaskSpec};
use std::ops::Range;

/// Most lanes that are open at a time.
const LANES_MAX: usize = 5;

/// The expected state of one lane.
pub(super) struct LaneOracle {
    /// Its device queues.
    pub(super) queues: Range<u32>,
    pub(super) paired_queues: bool,
    pub(super) is_closing: bool,
}

impl LaneOracle {
    pub(super) fn of_all(queues: u32, paired_queues: bool) -> LaneOracle {
        LaneOracle { queues: 0..queues << u32::from(paired_queues), paired_queues, is_closing: false }
    }

    /// The queues that the policy sees.
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

    /// Whether a device queue is a paired queue, for second branches.
    pub(super) fn is_paired_queue(&self, queue: u32) -> bool {
        self.lanes.values().any(|lane| lane.queues.contains(&queue) && !lane.policy_queues().contains(&queue))
    }

    /// The slices of all lanes.
    pub(super) fn running_slices(&self) -> Vec<Slice> {
        self.lanes.keys().filter_map(|lane| self.scheduler.slice(*lane)).collect()
    }

    /// Any lane, including closing ones; the default lane if lanes do not open and close.
    pub(super) fn some_lane(&mut self) -> LaneId {
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        if lanes.len() == 1 { lanes[0] } else { lanes[self.rng.below(lanes.len() as u64) as usize] }
    }

    pub(super) fn change_lanes(&mut self) {
        if self.lanes.len() < LANES_MAX && self.rng.one_in(2) { self.open_lane() } else { self.close_lane() }
    }

    /// Opens a lane, or is refused: for queues of another lane or beyond the device's, or for an id
    /// that was used.
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
                self.lanes.insert(lane, LaneOracle { queues, paired_queues, is_closing: false });
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
            Some(oracle) if oracle.is_closing => Err(LaneError::Closing(lane)),
            Some(_) => Ok(()),
        };
        assert_eq!(self.scheduler.close_lane(self.now, lane, &mut actions), expected);
        if expected.is_ok() {
            self.lanes.get_mut(&lane).expect("looked at").is_closing = true;
            self.notified = Some(lane);
            self.carry_all_out(actions);
        }
    }

    pub(super) fn lane_closed(&mut self, lane: LaneId) {
        let closed = self.lanes.remove(&lane).expect("a lane is closed once");
        assert!(closed.is_closing, "lane {} was closed without a request", lane.0);
        assert!(
            closed.queues.clone().all(|queue| self.device.depth(queue as usize) == 0),
            "launches are left in lane {}",
            lane.0
        );
        assert!(
            !self.tasks.values().any(|oracle| oracle.finished.is_none() && oracle.lane == lane),
            "tasks are left in lane {}",
            lane.0
        );
        self.totals.closed_lanes += 1;
    }

    /// The lane that an event is for; `None` for all lanes.
    pub(super) fn lane_of_event(&self, event: &Event) -> Option<LaneId> {
        match event {
            Event::TaskArrived(TaskSpec { task, .. })
            | Event::TaskReady { task }
            | Event::TaskUnready { task }
            | Event::TaskPrepared { task }
            | Event::TaskFailed { task }
            | Event::HostStepDone { task, .. }
            // A task that is finished is in no lane.
            | Event::CancelTask { task } => {
                let unfinished = Some(&self.tasks[task]).filter(|oracle| oracle.finished.is_none());
                Some(unfinished.map_or(LaneId::DEFAULT, |oracle| oracle.lane))
            }
            Event::LaunchEnded { .. } => self.lane_of_end,
            Event::DeviceLost | Event::Tick => None,
        }
    }

    /// Tasks move from closing lanes to the default lane, and only while nothing of them is
    /// running.
    pub(super) fn check_moves(&mut self) {
        let World { scheduler, tasks, lanes, totals, now, .. } = self;
        for (&id, oracle) in tasks.iter_mut().filter(|(_, oracle)| oracle.finished.is_none()) {
            if oracle.deadline.is_some_and(|at| at <= *now) && scheduler.is_ending(id) {
                // Its lane got the time with another event.
                oracle.over_since.get_or_insert(*now);
            }
            let Some(lane) = scheduler.lane_of(id).filter(|lane| *lane != oracle.lane) else { continue };
            assert!(
                lane == LaneId::DEFAULT && lanes.get(&oracle.lane).is_some_and(|lane| lane.is_closing),
                "{id:?} moves to lane {}",
                lane.0
            );
            assert!(!oracle.is_served(), "{id:?} moves while something of it is running");
            totals.moved += 1;
            totals.moved_midway += u64::from(oracle.complete.contains(&true));
            oracle.lane = lane;
        }
    }

    /// Closes all lanes at the end; then the lanes are as they were at the beginning.
    pub(super) fn close_all_lanes(&mut self) {
        let open: Vec<LaneId> = self.lanes.iter().filter(|(_, lane)| !lane.is_closing).map(|(id, _)| *id).collect();
        for lane in open.into_iter().filter(|lane| *lane != LaneId::DEFAULT) {
            let mut actions = Vec::new();
            self.scheduler.close_lane(self.now, lane, &mut actions).expect("it is open");
            self.lanes.get_mut(&lane).expect("it is open").is_closing = true;
            self.notified = Some(lane);
            self.carry_all_out(actions);
        }
        assert_eq!(self.lanes.len(), 1, "lanes are left");
        let all: Vec<_> = self.scheduler.lanes().collect();
        assert!(
            all.len() == 1
                && all[0].config.queues == LaneOracle::of_all(self.scenario.queues, self.scenario.paired_queues).queues,
            "{all:?}"
        );
        assert_eq!(self.scheduler.lane_of(TaskId(0)), None);
    }
}
