//! A simulated device in virtual time.
//!
//! Launches of one device queue run one after the other; launches of different queues run
//! concurrently. The launch at the head of a queue starts after the launch latency, unless that was
//! hidden by the previous launch. Then its blocks are assigned to compute units as long as there is
//! capacity, in *groups* that start together and therefore end together. A block takes a fraction
//! of a compute unit according to the occupancy of its kernel. It runs for the wave time that the
//! profile has for the current utilisation of the device at its start. So a kernel that runs alone
//! takes what its profile says, and kernels that run concurrently slow each other down just as
//! their own waves do.
//!
//! A raised epoch becomes visible to kernels after a delay. From then on, blocks that have not
//! started are evicted. If the device can interrupt, running blocks are stopped too and run again
//! later. A launch that lost blocks ends as evicted. The number of blocks that ran is kept by task
//! and step, like in a progress map.
//!
//! Each kind of fault changes one thing: a stuck kernel keeps its compute units until the device
//! ends it, a failing reset is an epoch that no kernel reads, and a late completion also delays the
//! completions behind it in its queue.
//!
//! Queues belong to lanes; the first queues belong to the default lane, which has all compute
//! units. The blocks of a lane take at most the lane's number of compute units, and only compute
//! units that are free. Only the number of compute units is simulated, not which ones they are.
//!
//! The pads of a launch run on compute units of their own, in rounds. The launch ends when its own
//! blocks and all pads have ended.

mod blocks;

use crate::faults::{DeviceFaults, Faults};
use crate::model::Kernel;
use crate::occupancy::Group as Occupying;
use crate::parameters::DeviceParameters;
use atoll_core::{Epoch, LaneConfig, LaneId, LaunchEnd, LaunchId, Nanos, PadShape, PreemptLevel, QueueId, TaskId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Subdivisions of a compute unit: divisible by every occupancy up to 16, and nearly by the others.
const UNIT: u64 = 720_720;

/// A launch as it is submitted to the device.
#[derive(Clone, Debug)]
pub struct SimLaunch {
    /// The launch id.
    pub launch: LaunchId,
    /// The task that it belongs to.
    pub task: TaskId,
    /// The step of the task.
    pub step: u32,
    /// The epoch under which it was issued.
    pub epoch: Epoch,
    /// The kernel that it runs.
    pub kernel: Arc<Kernel>,
    /// Blocks of other tasks that run in the same launch (dynamic kernel padding).
    pub pads: Vec<SimPad>,
}

/// Blocks of another task that run in the same launch, on compute units of their own.
#[derive(Clone, Debug)]
pub struct SimPad {
    /// The task that they belong to.
    pub task: TaskId,
    /// The step of the task.
    pub step: u32,
    /// The number of blocks and of compute units.
    pub shape: PadShape,
    /// The kernel of the blocks.
    pub kernel: Arc<Kernel>,
}

impl SimPad {
    /// How long all blocks take, in rounds one after the other.
    fn ns(&self) -> u64 {
        let PadShape { blocks, compute_units, at_once } = self.shape;
        u64::from(blocks.div_ceil(compute_units * at_once)) * self.kernel.profile.wave_ns[at_once as usize - 1]
    }
}

/// A launch that ended. The scheduler learns of it after the completion latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The launch id.
    pub launch: LaunchId,
    /// How it ended.
    pub end: LaunchEnd,
    /// When its first block began; `None` if none did.
    pub began: Option<Nanos>,
    /// When its last block ended or was evicted.
    pub at: Nanos,
    /// Blocks that were stopped while they ran, and run again later.
    pub stopped_blocks: u32,
    /// Compute-unit time that these blocks lost, in nanoseconds.
    pub wasted_ns: u64,
}

/// Blocks that started together.
#[derive(Debug)]
struct Group {
    number: u64,
    blocks: u32,
    began: Nanos,
}

/// Pads that have started.
#[derive(Debug)]
struct RunningPad {
    number: u64,
    began: Nanos,
    pad: SimPad,
}

/// The launch that a queue currently processes.
#[derive(Debug)]
struct Current {
    launch: SimLaunch,
    /// The capacity that one of its blocks takes, in subdivisions of a compute unit.
    each: u64,
    /// Blocks that have not started.
    pending: u32,
    running: Vec<Group>,
    pending_pads: Vec<SimPad>,
    running_pads: Vec<RunningPad>,
    /// Compute units that are not reserved for pads.
    own_units: u32,
    /// Blocks that ran, in this launch or in an earlier launch of the same step.
    ran: u32,
    began: Option<Nanos>,
    /// Whether blocks were evicted or stopped.
    evicted: bool,
    /// Whether its kernel never ends by itself (an injected fault).
    is_stuck: bool,
    /// Whether the device ended it because it ran for too long.
    has_failed: bool,
    stopped_blocks: u32,
    wasted_ns: u64,
}

impl Current {
    fn running_blocks(&self) -> u32 {
        self.running.iter().map(|group| group.blocks).sum()
    }

    fn is_over(&self) -> bool {
        self.pending == 0 && self.running.is_empty() && self.pending_pads.is_empty() && self.running_pads.is_empty()
    }
}

/// Compute units that are shared by a range of queues.
#[derive(Debug)]
struct Lane {
    id: LaneId,
    queues: Range<usize>,
    compute_units: u32,
    /// The capacity in use, in subdivisions of a compute unit.
    used: u64,
}

/// One device queue.
#[derive(Debug, Default)]
struct Queue {
    /// Launches behind the current one, with their submission times.
    waiting: VecDeque<(Nanos, SimLaunch)>,
    current: Option<Current>,
    /// Launches that ended and have not been reported to the scheduler yet.
    unreported: VecDeque<Ended>,
    /// No completion is reported before this time: completions of one queue are reported in order.
    report_from: Nanos,
}

/// An event of the discrete simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceEvent {
    /// The device starts the current launch of a queue.
    Open { queue: usize },
    /// A group of blocks has run.
    GroupEnds { queue: usize, group: u64 },
    /// A raised epoch becomes visible to kernels.
    FlagSeen { task: TaskId, epoch: u32 },
    /// The running blocks of a task are stopped.
    Interrupt { task: TaskId },
    /// The current launch of a queue is finished.
    Close { queue: usize },
    /// The oldest unreported completion of a queue is reported to the scheduler.
    Report { queue: usize },
}

/// A simulated device in virtual time.
#[derive(Debug)]
pub struct SimDevice {
    parameters: DeviceParameters,
    queues: Vec<Queue>,
    /// The default lane, then the opened lanes.
    lanes: Vec<Lane>,
    /// Queues whose current launch has running or unassigned blocks, in the order in which these
    /// launches started.
    open: Vec<usize>,
    /// The queue whose launch was started last.
    last: Option<usize>,
    /// The capacity in use, in subdivisions of a compute unit.
    used: u64,
    /// The epochs that kernels see.
    seen: HashMap<TaskId, Epoch>,
    /// The number of blocks that ran in evicted launches, by task and step.
    ran: HashMap<(TaskId, u32), u32>,
    events: BinaryHeap<Reverse<(Nanos, u64, DeviceEvent)>>,
    /// Counts events and groups, so that simultaneous events have a defined order.
    count: u64,
    /// Integral of `used` over time.
    busy: u128,
    now: Nanos,
    faults: DeviceFaults,
    /// If recording: since when, and the groups of blocks that ran.
    watched: Option<(Nanos, Vec<Occupying>)>,
}

impl SimDevice {
    /// Subdivisions of a compute unit in the recorded groups.
    pub(crate) const UNIT: u64 = UNIT;

    /// An idle device at time 0.
    pub fn new(parameters: &DeviceParameters) -> SimDevice {
        SimDevice {
            parameters: *parameters,
            queues: (0..parameters.queues).map(|_| Queue::default()).collect(),
            lanes: vec![Lane {
                id: LaneId::DEFAULT,
                queues: 0..parameters.queues as usize,
                compute_units: parameters.compute_units,
                used: 0,
            }],
            open: Vec::new(),
            last: None,
            used: 0,
            seen: HashMap::new(),
            ran: HashMap::new(),
            events: BinaryHeap::new(),
            count: 0,
            busy: 0,
            now: Nanos(0),
            faults: DeviceFaults::new(&Faults::default(), 0),
            watched: None,
        }
    }

    /// The parameters it was created with.
    pub fn parameters(&self) -> &DeviceParameters {
        &self.parameters
    }

    /// The same device with injected faults, which depend on the seed.
    #[must_use]
    pub fn with_faults(self, faults: &Faults, seed: u64) -> SimDevice {
        SimDevice { faults: DeviceFaults::new(faults, seed), ..self }
    }

    /// Opens a lane. Its queues follow the existing ones or reuse the places of the queues of a
    /// closed lane.
    pub fn open_lane(&mut self, lane: &LaneConfig) {
        let queues = lane.queues.start as usize..lane.queues.end as usize;
        assert!(
            self.lanes.iter().all(|other| other.queues.end <= queues.start || queues.end <= other.queues.start),
            "a queue of two lanes"
        );
        if self.queues.len() < queues.end {
            self.queues.resize_with(queues.end, Queue::default);
        }
        self.lanes.push(Lane { id: lane.lane, queues, compute_units: lane.compute_units, used: 0 });
    }

    /// Closes an idle lane.
    pub fn close_lane(&mut self, lane: LaneId) {
        let at = self.lanes.iter().position(|other| other.id == lane).expect("a lane that is open is closed");
        let closed = self.lanes.remove(at);
        let is_idle = |queue: &Queue| queue.current.is_none() && queue.waiting.is_empty();
        assert!(
            closed.used == 0 && self.queues[closed.queues].iter().all(is_idle),
            "a lane is closed while launches are in it"
        );
    }

    fn lane(&mut self, queue: usize) -> &mut Lane {
        self.lanes.iter_mut().find(|lane| lane.queues.contains(&queue)).expect("a queue belongs to a lane")
    }

    /// Reserves capacity for a queue.
    fn take(&mut self, queue: usize, parts: u64) {
        self.used += parts;
        self.lane(queue).used += parts;
    }

    fn free(&mut self, queue: usize, parts: u64) {
        self.used -= parts;
        self.lane(queue).used -= parts;
    }

    /// The free capacity for a queue, within its lane and the device.
    fn room(&mut self, queue: usize) -> u64 {
        let free = self.capacity() - self.used;
        let lane = self.lane(queue);
        free.min(u64::from(lane.compute_units) * UNIT - lane.used)
    }

    /// The faults injected so far.
    pub(crate) fn faults(&self) -> &DeviceFaults {
        &self.faults
    }

    /// Records the groups of blocks that run from a time on.
    pub(crate) fn watch(&mut self, from: Nanos) {
        self.watched = Some((from, Vec::new()));
    }

    /// The recorded groups up to now.
    pub(crate) fn watched(mut self) -> Vec<Occupying> {
        let now = self.now;
        for queue in 0..self.queues.len() {
            let Some(Current { launch, each, running, running_pads, .. }) = self.queues[queue].current.take() else {
                continue;
            };
            running.into_iter().for_each(|group| self.note(&launch, each, &group, now, false));
            running_pads.into_iter().for_each(|running| self.note_pad(&running, now));
        }
        self.watched.map(|(_, groups)| groups).unwrap_or_default()
    }

    fn note(&mut self, launch: &SimLaunch, each: u64, group: &Group, ended: Nanos, was_stopped: bool) {
        let (task, kernel, blocks) = (launch.task, Arc::clone(&launch.kernel), group.blocks);
        let parts = u64::from(blocks) * each;
        self.keep(Occupying { task, kernel, blocks, parts, began: group.began, ended, was_stopped, is_padding: false });
    }

    fn note_pad(&mut self, running: &RunningPad, ended: Nanos) {
        let SimPad { task, shape, kernel, .. } = &running.pad;
        let parts = u64::from(shape.compute_units) * UNIT;
        let (kernel, blocks) = (Arc::clone(kernel), shape.blocks);
        self.keep(Occupying {
            task: *task,
            kernel,
            blocks,
            parts,
            began: running.began,
            ended,
            was_stopped: false,
            is_padding: true,
        });
    }

    fn keep(&mut self, group: Occupying) {
        if let Some((from, groups)) = &mut self.watched
            && group.ended > *from
        {
            groups.push(group);
        }
    }

    /// Submits a launch to a queue.
    pub fn submit(&mut self, now: Nanos, queue: QueueId, launch: SimLaunch) {
        let queue = queue.0 as usize;
        self.queues[queue].waiting.push_back((now, launch));
        self.fetch(now, queue);
    }

    /// Raises the epoch of a task. Kernels see it after a delay.
    pub fn raise_epoch(&mut self, now: Nanos, task: TaskId, epoch: Epoch) {
        if self.faults.failing_resets.happens() {
            return;
        }
        self.after(now, self.parameters.costs.flag_ns, DeviceEvent::FlagSeen { task, epoch: epoch.0 });
    }

    /// Drops the state of a task that has ended.
    pub fn forget(&mut self, task: TaskId) {
        self.seen.remove(&task);
        self.ran.retain(|(owner, _), _| *owner != task);
    }

    /// The time of the next event, if there is one.
    pub fn next(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Advances the time and appends the completions that are reported until then.
    pub fn advance(&mut self, until: Nanos, reported: &mut Vec<Ended>) {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at <= until
        {
            self.events.pop();
            self.pass(at);
            self.handle(at, event, reported);
        }
        self.pass(until);
    }

    /// The average utilisation of the device so far, from 0 to 1.
    pub fn utilisation(&self) -> f64 {
        let all = u128::from(self.now.0) * u128::from(self.capacity());
        if all == 0 { 0.0 } else { self.busy as f64 / all as f64 }
    }

    fn capacity(&self) -> u64 {
        u64::from(self.parameters.compute_units) * UNIT
    }

    fn pass(&mut self, now: Nanos) {
        self.busy += u128::from(self.used) * u128::from(now.0 - self.now.0);
        self.now = now;
    }

    fn after(&mut self, now: Nanos, ns: u64, event: DeviceEvent) {
        self.count += 1;
        self.events.push(Reverse((Nanos(now.0 + ns), self.count, event)));
    }

    fn handle(&mut self, now: Nanos, event: DeviceEvent, reported: &mut Vec<Ended>) {
        match event {
            DeviceEvent::Open { queue } => self.open(now, queue),
            DeviceEvent::GroupEnds { queue, group } => self.group_ends(now, queue, group),
            DeviceEvent::FlagSeen { task, epoch } => {
                self.seen.insert(task, Epoch(epoch));
                if self.parameters.preempt_level == PreemptLevel::Interrupt {
                    self.after(now, self.parameters.costs.interrupt_ns, DeviceEvent::Interrupt { task });
                }
                self.dispatch(now);
            }
            DeviceEvent::Interrupt { task } => self.interrupt(now, task),
            DeviceEvent::Close { queue } => self.close(now, queue),
            DeviceEvent::Report { queue } => reported.extend(self.queues[queue].unreported.pop_front()),
        }
    }

    /// Starts the next launch of a queue if it has no current one.
    fn fetch(&mut self, now: Nanos, queue: usize) {
        let (costs, compute_units) = (self.parameters.costs, self.lane(queue).compute_units);
        let place = &mut self.queues[queue];
        if place.current.is_some() {
            return;
        }
        let Some((submitted, launch)) = place.waiting.pop_front() else { return };
        let ran = self.ran.remove(&(launch.task, launch.step)).unwrap_or(0);
        place.current = Some(Current {
            each: UNIT / u64::from(launch.kernel.profile.occupancy()),
            pending: launch.kernel.profile.blocks - ran,
            own_units: compute_units - launch.pads.iter().map(|pad| pad.shape.compute_units).sum::<u32>(),
            running: Vec::new(),
            pending_pads: launch.pads.clone(),
            running_pads: Vec::new(),
            launch,
            ran,
            began: None,
            evicted: false,
            is_stuck: self.faults.stuck_kernels.happens(),
            has_failed: false,
            stopped_blocks: 0,
            wasted_ns: 0,
        });
        let turns = !self.open.is_empty() && self.last != Some(queue);
        let ready = Nanos(submitted.0 + costs.launch_ns).max(now);
        self.after(ready, if turns { costs.dispatch_ns } else { 0 }, DeviceEvent::Open { queue });
    }

    fn is_raised(&self, launch: &SimLaunch) -> bool {
        self.seen.get(&launch.task).is_some_and(|epoch| launch.epoch.is_raised_by(*epoch))
    }

    fn current(&mut self, queue: usize) -> &mut Current {
        self.queues[queue].current.as_mut().expect("the queue has come to a launch")
    }

    fn open(&mut self, now: Nanos, queue: usize) {
        let launch = self.current(queue).launch.clone();
        if self.is_raised(&launch) {
            let current = self.current(queue);
            current.evicted = current.pending > 0;
            return self.after(now, self.parameters.costs.evicted_launch_ns, DeviceEvent::Close { queue });
        }
        self.open.push(queue);
        self.last = Some(queue);
        self.dispatch(now);
    }
}
