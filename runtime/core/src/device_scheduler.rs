//! The scheduler of a device: its lanes, each with its own scheduler, and the state they share.
//!
//! An event goes to the lane of its task or launch, and only that lane takes decisions. Tasks and
//! launches that are in no table belong to the default lane, so a device with one lane needs no
//! look-ups. Lanes isolate tasks: real-time tasks of one lane never evict tasks of another lane.
//! Lanes share the numbering of launches. Shares of clients belong to a lane (`shares.rs`).
//!
//! A closing lane binds no tasks and issues no launches. Its launches on the device exit by their
//! epoch, or run to their end if they cannot be preempted. Each of its tasks moves to the default
//! lane once none of its launches is on the device, and continues there with all its progress. If
//! the task's client has its share in another lane of the same ledger, the task moves to that lane.

use crate::counters::Counters;
use crate::event::{Action, Event, TaskSpec};
use crate::ids::{Class, LaneId, LaunchId, Nanos, QueueId, TaskId};
use crate::limits::{DEVICE_QUEUES_MAX, LAUNCH_NS_DEFAULT};
use crate::padding::{PaddingDelay, PaddingOptions};
use crate::scheduler::{Scheduler, SchedulerConfig};
use crate::starvation::Slice;
use crate::tokens::{BusyTime, TokenConfig};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// A lane to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// Its id; unique for the life of the scheduler.
    pub lane: LaneId,
    /// The device's indices of its queues; the first has the highest priority.
    pub queues: Range<u32>,
    /// Whether the second half of them are paired queues of the first half, for second branches.
    pub paired_queues: bool,
    /// Number of compute units that the queues are bound to.
    pub compute_units: u32,
}

/// A lane that is open or closing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// The lane, as it was opened.
    pub config: LaneConfig,
    /// Number of its tasks.
    pub tasks: usize,
    /// Whether it is closing.
    pub is_closing: bool,
}

/// Why a lane cannot be opened or closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// No lane has this id.
    Unknown(LaneId),
    /// A lane with this id exists or existed.
    Taken(LaneId),
    /// The default lane cannot be closed.
    Default,
    /// The lane is already closing.
    Closing(LaneId),
    /// The range is empty or exceeds the device's queues.
    Queues(Range<u32>),
    /// Half of the queues are to be paired queues, but their number is odd.
    PairedQueues(usize),
    /// A queue belongs to another lane.
    QueueTaken(QueueId, LaneId),
    /// It has no compute units, or more than the device has.
    ComputeUnits {
        /// Compute units of the lane.
        wanted: u32,
        /// Compute units of the device.
        of: u32,
    },
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaneError::Unknown(lane) => write!(f, "there is no lane {}", lane.0),
            LaneError::Taken(lane) => write!(f, "lane {} already exists or existed; use a new id", lane.0),
            LaneError::Default => f.write_str("the default lane cannot be closed"),
            LaneError::Closing(lane) => write!(f, "lane {} is already closing", lane.0),
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

/// State that all lanes of a device share.
#[derive(Debug, Default)]
pub(crate) struct DeviceWide {
    launches: u64,
    /// Launches in flight in lanes other than the default lane.
    lanes: HashMap<LaunchId, LaneId, FixedState>,
    /// The measured busy time of the launch whose end is reported next, if it was measured.
    pub(crate) measured: Option<(LaunchId, BusyTime)>,
    /// The delay by padding that real-time tasks may have.
    pub(crate) padding_delay: PaddingDelay,
}

impl DeviceWide {
    /// The id of a lane's next launch: unique and increasing across all lanes.
    pub(crate) fn next_launch(&mut self, lane: LaneId) -> LaunchId {
        let launch = LaunchId(self.launches);
        self.launches += 1;
        if lane != LaneId::DEFAULT {
            self.lanes.insert(launch, lane);
        }
        launch
    }
}

/// The scheduling state of one device. Deterministic: the same events at the same times give the
/// same actions.
///
/// The caller carries the actions out in the given order, and reports their results as events.
pub struct DeviceScheduler {
    /// Configuration of each lane's scheduler, except for queues and compute units.
    config: SchedulerConfig,
    /// The default lane, followed by the others in the order in which they were opened.
    pub(crate) lanes: Vec<Scheduler>,
    /// Tasks in lanes other than the default lane.
    pub(crate) tasks: HashMap<TaskId, LaneId, FixedState>,
    /// Greater than the ids of all lanes opened so far.
    next_lane: LaneId,
    pub(crate) device: DeviceWide,
    pub(crate) token_config: TokenConfig,
    /// Sums of the counters of closed lanes.
    closed: Counters,
}

impl DeviceScheduler {
    /// A scheduler without tasks. Its only lane is the default lane, with all compute units.
    ///
    /// # Panics
    /// If the configuration has no queues, too many queues, or queues without room.
    pub fn new(config: &SchedulerConfig) -> DeviceScheduler {
        let lanes = vec![Scheduler::new(config, LaneId::DEFAULT, 0)];
        let (device, closed) = (DeviceWide::default(), Counters::default());
        DeviceScheduler {
            config: config.clone(),
            lanes,
            tasks: HashMap::default(),
            next_lane: LaneId(1),
            device,
            token_config: TokenConfig::for_device(LAUNCH_NS_DEFAULT),
            closed,
        }
    }

    /// Handles an event and appends the resulting actions.
    ///
    /// # Panics
    /// If the event contradicts earlier events: time goes back, a launch is unknown, launches end
    /// out of order or are aborted without a request. To continue would risk results computed from
    /// incomplete inputs.
    #[inline]
    pub fn handle(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match &mut self.lanes[..] {
            [only] => only.handle(now, event, &mut self.device, actions),
            _ => self.handle_in_lane(now, event, actions),
        }
    }

    /// [`DeviceScheduler::handle`] with several lanes.
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
                self.settle(now, actions);
                self.move_tasks(now, actions);
                return self.close_emptied(now, actions);
            }
        };
        let at = lane.map_or(0, |lane| self.place_of(lane).expect("tables hold ids of existing lanes only"));
        self.tell(at, now, event, actions);
        let is_closing = self.lanes[at].is_closing;
        self.settle(now, actions);
        self.move_tasks(now, actions);
        if is_closing {
            self.close_emptied(now, actions);
        }
    }

    /// The lane, other than the default lane, for a task that arrives.
    fn lane_for(&mut self, spec: &TaskSpec) -> Option<LaneId> {
        let at = self.place_of(spec.lane).filter(|&at| at > 0 && !self.lanes[at].is_closing)?;
        self.tasks.insert(spec.task, self.lanes[at].lane);
        Some(self.lanes[at].lane)
    }

    /// The index of a lane in `lanes`.
    pub(crate) fn place_of(&self, lane: LaneId) -> Option<usize> {
        self.lanes.iter().position(|other| other.lane == lane)
    }

    /// Passes an event to the lane at an index.
    pub(crate) fn tell(&mut self, at: usize, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        self.lend_ledger(at);
        let fresh = actions.len();
        self.lanes[at].handle(now, event, &mut self.device, actions);
        self.return_ledger(at);
        if at > 0 {
            for action in &actions[fresh..] {
                if let Action::FinishTask { task, .. } = action {
                    self.tasks.remove(task);
                }
            }
        }
    }

    /// Sets the options of padding, which are off by default.
    pub fn configure_padding(&mut self, options: PaddingOptions) {
        self.device.padding_delay.options = options;
    }

    // Lanes.

    /// Opens a lane.
    ///
    /// # Errors
    /// See [`LaneError`]. On error nothing has changed.
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

    /// Begins to close a lane. [`Action::CloseLane`] follows, at once or when its last launch has
    /// ended.
    ///
    /// # Errors
    /// If the lane does not exist, is already closing, or is the default lane.
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
        self.hand_shares_over(now, at);
        self.tell(at, now, Event::Tick, actions);
        // The clients of the lane have returned compute units.
        self.settle(now, actions);
        self.move_tasks(now, actions);
        self.close_emptied(now, actions);
        Ok(())
    }

    /// Moves idle tasks out of closing lanes, and closes the lanes that are then empty.
    fn close_emptied(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let mut idle = Vec::new();
        for at in 1..self.lanes.len() {
            if !self.lanes[at].is_closing {
                continue;
            }
            for task in self.lanes[at].release_idle(|_| true) {
                let home = if self.has_ledger_of(0, at) { self.home_of(task.spec.client) } else { None };
                idle.push((task, home.unwrap_or(0)));
            }
        }
        self.adopt_all(now, idle, actions);
        self.lanes.retain(|lane| {
            let is_closed = lane.is_closing && lane.task_count() == 0;
            if is_closed {
                self.closed += lane.counters;
                actions.push(Action::CloseLane { lane: lane.lane });
            }
            !is_closed
        });
    }

    /// The lanes that are open or closing, the default lane first.
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

    // Across all lanes.

    /// When [`Event::Tick`] is due if no other event comes first.
    pub fn next_wakeup(&self) -> Option<Nanos> {
        let unsettled = self.is_unsettled().then_some(self.lanes[0].now);
        self.lanes.iter().filter_map(Scheduler::next_wakeup).chain(unsettled).min()
    }

    /// Counts since the scheduler was created.
    pub fn counters(&self) -> Counters {
        let mut sum = self.closed;
        self.lanes.iter().for_each(|lane| sum += lane.counters);
        sum
    }

    /// Tasks that arrived and are not finished.
    pub fn task_count(&self) -> usize {
        self.lanes.iter().map(Scheduler::task_count).sum()
    }

    /// Tasks of a class that wait in host queues, including those that are not ready.
    pub fn waiting(&self, class: Class) -> usize {
        self.lanes.iter().map(|lane| lane.waiting(class)).sum()
    }

    /// Whether a real-time task is ready or running in any lane.
    pub fn is_in_real_time_mode(&self) -> bool {
        self.lanes.iter().any(Scheduler::is_in_real_time_mode)
    }

    /// Whether a task is over except for launches in flight.
    pub fn is_ending(&self, task: TaskId) -> bool {
        let lane = self.tasks.get(&task).and_then(|lane| self.place_of(*lane));
        self.lanes[lane.unwrap_or(0)].is_ending(task)
    }

    /// The slice of best-effort work that is running or promised in a lane.
    pub fn slice(&self, lane: LaneId) -> Option<Slice> {
        self.lanes[self.place_of(lane)?].slice()
    }

    /// The lane of a task; `None` if the task is unknown.
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
                    (TaskId(lane.0.into()), ClientId(0), Class::BestEffort, Arc::from([Step::NotPreemptible]));
                let spec = TaskSpec {
                    task,
                    lane,
                    client,
                    class,
                    priority: 0,
                    steps,
                    deadline: None,
                    due: None,
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
