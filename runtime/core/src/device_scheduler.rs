//! The scheduler of a device: its lanes, each with a scheduler of its own, and what they share.
//!
//! An event goes to the lane of its task or launch, and only that lane decides. What stands in no
//! table of other lanes is the default lane's, so that a device with one lane looks nothing up.
//! Real-time tasks of one lane evict nothing in another: that is what a lane is for. What lanes
//! share is the numbering of launches and the ledger of what clients may use.
//!
//! A lane that closes issues nothing any more, and what is on the device leaves by the epoch, or
//! ends where nothing can leave. Each of its tasks moves to the default lane once nothing of it is
//! on the device, with all it has done, and goes on there.

use crate::event::{Action, Event, TaskSpec};
use crate::ids::{Class, LaneId, LaunchId, Nanos, QueueId, TaskId};
use crate::limits::DEVICE_QUEUES_MAX;
use crate::scheduler::{Counters, Scheduler, SchedulerConfig};
use crate::starvation::Slice;
use crate::tokens::TokenLedger;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// A lane to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// Its name, not used again for the life of the scheduler.
    pub lane: LaneId,
    /// What the device calls its queues; the first one is the most urgent.
    pub queues: Range<u32>,
    /// Whether the second half of them are the paired queues of the first, for second lines.
    pub paired_queues: bool,
    /// How many compute units they are bound to.
    pub compute_units: u32,
}

/// A lane that is open or closing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The lane, as it was opened.
    pub config: LaneConfig,
    /// Tasks in it.
    pub tasks: usize,
    /// Whether it is closing.
    pub is_closing: bool,
}

/// Why a lane is not opened or closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// There is no such lane.
    Unknown(LaneId),
    /// There is, or was, one of this name.
    Taken(LaneId),
    /// The default lane stays open.
    Default,
    /// It is closing already.
    Closing(LaneId),
    /// It has no queues, or such as the device cannot have.
    Queues(Range<u32>),
    /// Half of its queues are to be paired queues, and their number is odd.
    PairedQueues(usize),
    /// A queue belongs to another lane.
    QueueTaken(QueueId, LaneId),
    /// It has no compute units, or more than the device.
    ComputeUnits {
        /// How many it was to have.
        wanted: u32,
        /// How many the device has.
        of: u32,
    },
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaneError::Unknown(lane) => write!(f, "there is no lane {}", lane.0),
            LaneError::Taken(lane) => write!(f, "there is a lane {} already", lane.0),
            LaneError::Default => f.write_str("the default lane cannot be closed"),
            LaneError::Closing(lane) => write!(f, "lane {} is closing already", lane.0),
            LaneError::Queues(queues) => {
                write!(
                    f,
                    "a lane cannot have the device queues {} to {}; a device has {DEVICE_QUEUES_MAX}",
                    queues.start, queues.end
                )
            }
            LaneError::PairedQueues(count) => {
                write!(f, "a lane with paired queues needs an even number of device queues, got {count}")
            }
            LaneError::QueueTaken(queue, lane) => write!(f, "device queue {} belongs to lane {}", queue.0, lane.0),
            LaneError::ComputeUnits { wanted, of } => {
                write!(f, "a lane cannot have {wanted} compute units; the device has {of}")
            }
        }
    }
}

impl std::error::Error for LaneError {}

/// What all lanes of a device share.
#[derive(Debug, Default)]
pub(crate) struct DeviceWide {
    launches: u64,
    /// The launches in flight in other lanes than the default one.
    lanes: HashMap<LaunchId, LaneId, FixedState>,
    pub(crate) tokens: TokenLedger,
}

impl DeviceWide {
    /// A name for the next launch, which is a lane's: unique and increasing over all lanes.
    pub(crate) fn next_launch(&mut self, lane: LaneId) -> LaunchId {
        let launch = LaunchId(self.launches);
        self.launches += 1;
        if lane != LaneId::DEFAULT {
            self.lanes.insert(launch, lane);
        }
        launch
    }
}

/// The state of scheduling one device. A pure function: the same events at the same times give the
/// same actions.
///
/// Whoever drives it carries the actions out in the order given, and reports what comes of them as
/// further events.
pub struct DeviceScheduler {
    /// How each lane's scheduler is made, but for queues and compute units.
    config: SchedulerConfig,
    /// The default lane, then the others in the order in which they were opened.
    lanes: Vec<Scheduler>,
    /// The tasks in other lanes than the default one.
    tasks: HashMap<TaskId, LaneId, FixedState>,
    /// Lanes that were opened so far have lower names.
    next_lane: LaneId,
    device: DeviceWide,
    /// What happened in lanes that are closed.
    closed: Counters,
}

impl DeviceScheduler {
    /// A scheduler without tasks, whose only lane is the default one, of all compute units.
    ///
    /// # Panics
    /// If the configuration has no queue, too many, or queues without room.
    pub fn new(config: &SchedulerConfig) -> DeviceScheduler {
        let lanes = vec![Scheduler::new(config, LaneId::DEFAULT, 0)];
        let (device, closed) = (DeviceWide::default(), Counters::default());
        DeviceScheduler {
            config: config.clone(),
            lanes,
            tasks: HashMap::default(),
            next_lane: LaneId(1),
            device,
            closed,
        }
    }

    /// Takes an event and appends what is to be done about it.
    ///
    /// # Panics
    /// If the event contradicts what the scheduler was told before: time that goes back, an unknown
    /// launch, launches that end out of order or without a cause. Going on would mean answers
    /// computed from inputs that were not there.
    #[inline]
    pub fn handle(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match &mut self.lanes[..] {
            [only] => only.handle(now, event, &mut self.device, actions),
            _ => self.handle_in_lane(now, event, actions),
        }
    }

    /// The same where there are several lanes.
    #[inline(never)]
    fn handle_in_lane(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        let lane = match event {
            Event::TaskArrived(ref spec) => self.lane_for(spec),
            Event::LaunchEnded { launch, .. } => self.device.lanes.remove(&launch),
            Event::TaskReady { task }
            | Event::TaskUnready { task }
            | Event::TaskPrepared { task }
            | Event::TaskFailed { task }
            | Event::HostStepDone { task, .. }
            | Event::CancelTask { task } => self.tasks.get(&task).copied(),
            Event::DeviceLost | Event::Tick => {
                for at in 0..self.lanes.len() {
                    self.tell(at, now, event.clone(), actions);
                }
                if self.lanes[0].lost {
                    self.device.lanes.clear();
                }
                return self.close_emptied(now, actions);
            }
        };
        let at = lane.map_or(0, |lane| self.place_of(lane).expect("tables name lanes that are there"));
        self.tell(at, now, event, actions);
        if self.lanes[at].is_closing {
            self.close_emptied(now, actions);
        }
    }

    /// The lane besides the default one that a task which arrives goes to.
    fn lane_for(&mut self, spec: &TaskSpec) -> Option<LaneId> {
        let at = self.place_of(spec.lane).filter(|&at| at > 0 && !self.lanes[at].is_closing)?;
        self.tasks.insert(spec.task, self.lanes[at].lane);
        Some(self.lanes[at].lane)
    }

    /// Where a lane stands among the lanes.
    fn place_of(&self, lane: LaneId) -> Option<usize> {
        self.lanes.iter().position(|other| other.lane == lane)
    }

    /// Tells an event to a lane.
    fn tell(&mut self, at: usize, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        let lane = &mut self.lanes[at];
        let fresh = actions.len();
        lane.handle(now, event, &mut self.device, actions);
        if at > 0 {
            for action in &actions[fresh..] {
                if let Action::FinishTask { task, .. } = action {
                    self.tasks.remove(task);
                }
            }
        }
    }

    // Lanes.

    /// Opens a lane.
    ///
    /// # Errors
    /// See [`LaneError`]. Nothing has changed then.
    pub fn open_lane(&mut self, config: &LaneConfig) -> Result<(), LaneError> {
        let LaneConfig { lane, ref queues, paired_queues, compute_units } = *config;
        if lane < self.next_lane {
            return Err(LaneError::Taken(lane));
        }
        if queues.is_empty() || queues.end > DEVICE_QUEUES_MAX {
            return Err(LaneError::Queues(queues.clone()));
        }
        if paired_queues && queues.len() % 2 == 1 {
            return Err(LaneError::PairedQueues(queues.len()));
        }
        let overlaps = |other: &&Scheduler| other.queues().start < queues.end && queues.start < other.queues().end;
        if let Some(other) = self.lanes.iter().find(overlaps) {
            return Err(LaneError::QueueTaken(QueueId(queues.start.max(other.queues().start)), other.lane));
        }
        if !(1..=self.config.compute_units).contains(&compute_units) {
            return Err(LaneError::ComputeUnits { wanted: compute_units, of: self.config.compute_units });
        }
        let known = (queues.end - queues.start) / if paired_queues { 2 } else { 1 };
        let own = SchedulerConfig { queues: known, paired_queues, compute_units, ..self.config.clone() };
        let mut scheduler = Scheduler::new(&own, lane, queues.start);
        scheduler.lost = self.lanes[0].lost;
        self.lanes.push(scheduler);
        self.next_lane = LaneId(lane.0 + 1);
        Ok(())
    }

    /// Begins to close a lane. [`Action::CloseLane`] follows, at once or when the last of its
    /// launches has ended.
    ///
    /// # Errors
    /// There is no such lane, it is closing, or it is the default one.
    pub fn close_lane(&mut self, now: Nanos, lane: LaneId, actions: &mut Vec<Action>) -> Result<(), LaneError> {
        if lane == LaneId::DEFAULT {
            return Err(LaneError::Default);
        }
        let at = self.place_of(lane).ok_or(LaneError::Unknown(lane))?;
        let closing = &mut self.lanes[at];
        if closing.is_closing {
            return Err(LaneError::Closing(lane));
        }
        closing.begin_closing(actions);
        self.tell(at, now, Event::Tick, actions);
        self.close_emptied(now, actions);
        Ok(())
    }

    /// Moves what can be moved out of lanes that are closing, and closes those that are empty then.
    fn close_emptied(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let idle: Vec<_> =
            self.lanes.iter_mut().filter(|lane| lane.is_closing).flat_map(Scheduler::release_idle).collect();
        if !idle.is_empty() {
            for task in idle {
                self.tasks.remove(&task.id());
                self.lanes[0].adopt(task);
            }
            self.lanes[0].handle(now, Event::Tick, &mut self.device, actions);
        }
        self.lanes.retain(|lane| {
            let is_closed = lane.is_closing && lane.task_count() == 0;
            if is_closed {
                self.closed += lane.counters;
                actions.push(Action::CloseLane { lane: lane.lane });
            }
            !is_closed
        });
    }

    /// The lanes that are open or closing, the default one first.
    pub fn lanes(&self) -> impl Iterator<Item = LaneState> {
        self.lanes.iter().map(|lane| LaneState {
            config: LaneConfig {
                lane: lane.lane,
                queues: lane.queues(),
                paired_queues: lane.has_paired_queues(),
                compute_units: lane.compute_units,
            },
            tasks: lane.task_count(),
            is_closing: lane.is_closing,
        })
    }

    // What the lanes know together.

    /// When [`Event::Tick`] is due if nothing else happens before.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        let lanes = self.lanes.iter().filter_map(Scheduler::next_wakeup).min();
        lanes.into_iter().chain(self.device.tokens.next_grant()).min()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let mut sum = self.closed;
        self.lanes.iter().for_each(|lane| sum += lane.counters);
        sum
    }

    /// Tasks that arrived and are not finished.
    pub fn task_count(&self) -> usize {
        self.lanes.iter().map(Scheduler::task_count).sum()
    }

    /// Tasks of a class that wait in host queues, those that cannot start yet included.
    pub fn waiting(&self, class: Class) -> usize {
        self.lanes.iter().map(|lane| lane.waiting(class)).sum()
    }

    /// Whether a lane serves real-time tasks now, those left out that cannot start yet.
    pub fn is_in_real_time_mode(&self) -> bool {
        self.lanes.iter().any(Scheduler::is_in_real_time_mode)
    }

    /// Whether a task is over but for what of it is in flight.
    pub fn is_ending(&self, task: TaskId) -> bool {
        let lane = self.tasks.get(&task).and_then(|lane| self.place_of(*lane));
        self.lanes[lane.unwrap_or(0)].is_ending(task)
    }

    /// The slice of best-effort work that runs or is promised in a lane.
    pub fn slice(&self, lane: LaneId) -> Option<Slice> {
        self.lanes[self.place_of(lane)?].slice()
    }

    /// The lane that a task is in; `None` if it is not there.
    pub fn lane_of(&self, task: TaskId) -> Option<LaneId> {
        let is_here = || self.lanes[0].has(task).then_some(LaneId::DEFAULT);
        self.tasks.get(&task).copied().or_else(is_here)
    }

    /// Launches in a device queue.
    pub fn device_queue_depth(&self, queue: QueueId) -> usize {
        self.lanes.iter().find_map(|lane| lane.device_queue_depth(queue)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{LaunchEnd, Step};
    use crate::ids::{ClientId, PreemptLevel};
    use std::sync::Arc;

    #[test]
    fn tables_are_empty_once_lanes_are_closed() {
        let config = SchedulerConfig {
            policy: crate::policy::policy_by_name("reset").expect("a policy"),
            queues: 4,
            paired_queues: false,
            queue_capacity: 1,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            compute_units: 4,
            best_effort_wait_ns_max: None,
            perturb: None,
        };
        let mut scheduler = DeviceScheduler::new(&config);
        let (mut actions, mut launches) = (Vec::new(), 0);
        for round in 0..1000 {
            let lanes = [LaneId(2 * round + 1), LaneId(2 * round + 2)];
            for (lane, first) in lanes.into_iter().zip([4, 6]) {
                scheduler
                    .open_lane(&LaneConfig { lane, queues: first..first + 2, paired_queues: false, compute_units: 2 })
                    .expect("it is free");
                let (task, client, class, steps) =
                    (TaskId(lane.0.into()), ClientId(0), Class::BestEffort, Arc::from([Step::Solid]));
                let spec = TaskSpec {
                    task,
                    lane,
                    client,
                    class,
                    priority: 0,
                    steps,
                    deadline: None,
                    profiles: None,
                    forks: None,
                    ready: true,
                };
                scheduler.handle(Nanos(0), Event::TaskArrived(spec), &mut actions);
                scheduler.handle(Nanos(0), Event::TaskPrepared { task }, &mut actions);
            }
            assert_eq!(
                (scheduler.lanes.len(), scheduler.tasks.len(), scheduler.device.lanes.len()),
                (3, 2, 2),
                "round {round}"
            );
            for lane in lanes {
                scheduler.close_lane(Nanos(0), lane, &mut actions).expect("it is open");
                scheduler.handle(
                    Nanos(0),
                    Event::LaunchEnded { launch: LaunchId(launches), end: LaunchEnd::Complete },
                    &mut actions,
                );
                launches += 1;
            }
            assert_eq!(
                (scheduler.lanes.len(), scheduler.tasks.len(), scheduler.device.lanes.len()),
                (1, 0, 0),
                "round {round}"
            );
        }
        let closed = actions.iter().filter(|action| matches!(action, Action::CloseLane { .. })).count();
        assert_eq!((closed, scheduler.task_count()), (2000, 0));
    }
}
