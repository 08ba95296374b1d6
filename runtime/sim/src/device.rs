//! A device in virtual time.
//!
//! Launches of a device queue run one after the other, those of several queues side by side. The
//! launch at the head of a queue begins after what a launch takes, unless that was hidden by the
//! one before it; then its blocks go to compute units wherever there is room, in *groups* that
//! start together and therefore end together. A block takes the share of a compute unit that its
//! occupancy says; how long it runs is the wave time for the share of the device that is taken when
//! it starts. So a kernel alone takes what its profile says, and kernels side by side slow
//! each other down as their own waves do.
//!
//! A raised epoch is seen some time later. From then on blocks that have not begun leave, and where
//! the device can interrupt, those that run are stopped and will run again. A launch that lost
//! blocks ends as evicted; the blocks that ran are remembered by task and step, as by a progress
//! map.
//!
//! Faults change one thing each: a kernel that is stuck keeps its compute units until the device
//! ends it, a reset that fails is an epoch that no kernel reads, a late completion holds back those
//! behind it.
//!
//! Queues belong to lanes, the first ones to the default lane of all compute units. Blocks of a
//! lane take no more than its compute units, and no more than nobody has: which ones these are is
//! not simulated.
//!
//! Pads of a launch run on compute units of their own, one round after the other, and the launch
//! ends with the last of everything.

use crate::faults::{DeviceFaults, Faults, LATE_COMPLETION_NS, STUCK_KERNEL_NS};
use crate::model::Kernel;
use crate::occupancy::Group as Occupying;
use crate::parameters::DeviceParameters;
use atoll_core::{Epoch, LaneConfig, LaneId, LaunchEnd, LaunchId, Nanos, PadShape, PreemptLevel, QueueId, TaskId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Parts of a compute unit: divisible by all occupancies up to 16 and nearly by the others.
const UNIT: u64 = 720_720;

/// A launch as it is handed over.
#[derive(Clone, Debug)]
pub struct SimLaunch {
    /// Its number.
    pub launch: LaunchId,
    /// Whose it is.
    pub task: TaskId,
    /// Which step of that.
    pub step: u32,
    /// The epoch it carries.
    pub epoch: Epoch,
    /// What it runs.
    pub kernel: Arc<Kernel>,
    /// What runs beside it.
    pub pads: Vec<SimPad>,
}

/// Blocks that run beside a launch, on compute units of their own.
#[derive(Clone, Debug)]
pub struct SimPad {
    /// Whose they are.
    pub task: TaskId,
    /// Which step of that.
    pub step: u32,
    /// How many there are, and where.
    pub shape: PadShape,
    /// What they are blocks of.
    pub kernel: Arc<Kernel>,
}

impl SimPad {
    /// How long they take, one round after the other.
    fn ns(&self) -> u64 {
        let PadShape { blocks, compute_units, at_once } = self.shape;
        u64::from(blocks.div_ceil(compute_units * at_once)) * self.kernel.profile.wave_ns[at_once as usize - 1]
    }
}

/// A launch that ended, as the scheduler hears of it after the time that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its number.
    pub launch: LaunchId,
    /// How it ended.
    pub end: LaunchEnd,
    /// When its first block began; `None` if none did.
    pub began: Option<Nanos>,
    /// When its last block ended or left.
    pub at: Nanos,
    /// Blocks that were stopped midway and will run again.
    pub stopped_blocks: u32,
    /// Compute-unit time of them, in nanoseconds.
    pub wasted_ns: u64,
}

/// Blocks that began together.
#[derive(Debug)]
struct Group {
    number: u64,
    blocks: u32,
    began: Nanos,
}

/// Pads that have begun.
#[derive(Debug)]
struct RunningPad {
    number: u64,
    began: Nanos,
    pad: SimPad,
}

/// The launch that a queue has come to.
#[derive(Debug)]
struct Current {
    launch: SimLaunch,
    /// What one of its blocks takes, in parts of a compute unit.
    each: u64,
    /// Blocks that have not begun.
    pending: u32,
    running: Vec<Group>,
    pending_pads: Vec<SimPad>,
    running_pads: Vec<RunningPad>,
    /// Compute units that are not left to pads.
    own_units: u32,
    /// Blocks that ran, now or earlier.
    ran: u32,
    began: Option<Nanos>,
    /// Blocks left, or were stopped.
    left: bool,
    /// Its kernel does not end by itself.
    is_stuck: bool,
    /// The device ended it, since it ran for too long.
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

/// Compute units that queues share.
#[derive(Debug)]
struct Lane {
    id: LaneId,
    queues: Range<usize>,
    compute_units: u32,
    /// Parts of them that are taken.
    used: u64,
}

/// One device queue.
#[derive(Debug, Default)]
struct Queue {
    /// Launches behind the current one, with the times at which they were handed over.
    waiting: VecDeque<(Nanos, SimLaunch)>,
    current: Option<Current>,
    /// Those that ended and of which the scheduler has yet to hear.
    untold: VecDeque<Ended>,
    /// Before this the scheduler hears of none of them: of one queue it hears in order.
    told_from: Nanos,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The device begins with the current launch of a queue.
    Open { queue: usize },
    /// Blocks that began together have run.
    GroupEnds { queue: usize, group: u64 },
    /// A raised epoch is what kernels read.
    FlagSeen { task: TaskId, epoch: u32 },
    /// Running blocks of a task are stopped.
    Interrupt { task: TaskId },
    /// What is left of the current launch is gone.
    Close { queue: usize },
    /// The scheduler hears of the oldest launch that ended.
    Tell { queue: usize },
}

/// A device in virtual time.
#[derive(Debug)]
pub struct SimDevice {
    parameters: DeviceParameters,
    queues: Vec<Queue>,
    /// The default lane, then those that were opened.
    lanes: Vec<Lane>,
    /// Queues whose current launch has blocks on compute units or on their way there, in the order
    /// in which that began.
    open: Vec<usize>,
    /// The queue that was opened last.
    last: Option<usize>,
    /// Parts of compute units that are taken.
    used: u64,
    /// Epochs as kernels read them.
    seen: HashMap<TaskId, Epoch>,
    /// Blocks that ran of launches that were cut short, by task and step.
    ran: HashMap<(TaskId, u32), u32>,
    happenings: BinaryHeap<Reverse<(Nanos, u64, Happening)>>,
    /// Counts happenings and groups, so that what happens at one time has an order.
    count: u64,
    /// Integral of `used` over time.
    busy: u128,
    now: Nanos,
    faults: DeviceFaults,
    /// What ran where, from a time on, where somebody draws it.
    watched: Option<(Nanos, Vec<Occupying>)>,
}

impl SimDevice {
    /// Parts of a compute unit, in what is watched.
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
            happenings: BinaryHeap::new(),
            count: 0,
            busy: 0,
            now: Nanos(0),
            faults: DeviceFaults::new(&Faults::default(), 0),
            watched: None,
        }
    }

    /// With things that go wrong, as the seed has it.
    #[must_use]
    pub fn with_faults(self, faults: &Faults, seed: u64) -> SimDevice {
        SimDevice { faults: DeviceFaults::new(faults, seed), ..self }
    }

    /// Opens a lane of so many compute units. Its queues come behind those there are, or take the
    /// places of a lane's that is closed.
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

    /// Closes a lane in which nothing is.
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

    /// Parts of compute units are taken for a queue.
    fn take(&mut self, queue: usize, parts: u64) {
        self.used += parts;
        self.lane(queue).used += parts;
    }

    fn free(&mut self, queue: usize, parts: u64) {
        self.used -= parts;
        self.lane(queue).used -= parts;
    }

    /// What a queue's lane and the device have left, in parts of compute units.
    fn room(&mut self, queue: usize) -> u64 {
        let left = self.capacity() - self.used;
        let lane = self.lane(queue);
        left.min(u64::from(lane.compute_units) * UNIT - lane.used)
    }

    /// What went wrong so far.
    pub(crate) fn faults(&self) -> &DeviceFaults {
        &self.faults
    }

    /// Remembers what runs from a time on.
    pub(crate) fn watch(&mut self, from: Nanos) {
        self.watched = Some((from, Vec::new()));
    }

    /// What ran since then, up to now.
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

    fn note(&mut self, launch: &SimLaunch, each: u64, group: &Group, ended: Nanos, was_cut: bool) {
        let (task, kernel, blocks) = (launch.task, Arc::clone(&launch.kernel), group.blocks);
        let parts = u64::from(blocks) * each;
        self.keep(Occupying { task, kernel, blocks, parts, began: group.began, ended, was_cut, is_padding: false });
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
            was_cut: false,
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

    /// Puts a launch into a queue.
    pub fn submit(&mut self, now: Nanos, queue: QueueId, launch: SimLaunch) {
        let queue = queue.0 as usize;
        self.queues[queue].waiting.push_back((now, launch));
        self.fetch(now, queue);
    }

    /// Raises the epoch of a task; kernels read it a little later.
    pub fn raise_epoch(&mut self, now: Nanos, task: TaskId, epoch: Epoch) {
        if self.faults.failing_resets.strikes() {
            return;
        }
        self.after(now, self.parameters.costs.flag_ns, Happening::FlagSeen { task, epoch: epoch.0 });
    }

    /// Nothing of a task will come any more.
    pub fn forget(&mut self, task: TaskId) {
        self.seen.remove(&task);
        self.ran.retain(|(owner, _), _| *owner != task);
    }

    /// When something happens next, if anything does.
    pub fn next(&self) -> Option<Nanos> {
        self.happenings.peek().map(|Reverse((at, ..))| *at)
    }

    /// Lets time pass and appends what the scheduler hears meanwhile.
    pub fn advance(&mut self, until: Nanos, told: &mut Vec<Ended>) {
        while let Some(&Reverse((at, _, happening))) = self.happenings.peek()
            && at <= until
        {
            self.happenings.pop();
            self.pass(at);
            self.happen(at, happening, told);
        }
        self.pass(until);
    }

    /// The share of the device that was in use so far, from 0 to 1.
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

    fn after(&mut self, now: Nanos, ns: u64, happening: Happening) {
        self.count += 1;
        self.happenings.push(Reverse((Nanos(now.0 + ns), self.count, happening)));
    }

    fn happen(&mut self, now: Nanos, happening: Happening, told: &mut Vec<Ended>) {
        match happening {
            Happening::Open { queue } => self.open(now, queue),
            Happening::GroupEnds { queue, group } => self.group_ends(now, queue, group),
            Happening::FlagSeen { task, epoch } => {
                self.seen.insert(task, Epoch(epoch));
                if self.parameters.preempt_level == PreemptLevel::Interrupt {
                    self.after(now, self.parameters.costs.interrupt_ns, Happening::Interrupt { task });
                }
                self.dispatch(now);
            }
            Happening::Interrupt { task } => self.interrupt(now, task),
            Happening::Close { queue } => self.close(now, queue),
            Happening::Tell { queue } => told.extend(self.queues[queue].untold.pop_front()),
        }
    }

    /// Turns to the next launch of a queue, if it is free for one.
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
            left: false,
            is_stuck: self.faults.stuck_kernels.strikes(),
            has_failed: false,
            stopped_blocks: 0,
            wasted_ns: 0,
        });
        let turns = !self.open.is_empty() && self.last != Some(queue);
        let ready = Nanos(submitted.0 + costs.launch_ns).max(now);
        self.after(ready, if turns { costs.dispatch_ns } else { 0 }, Happening::Open { queue });
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
            current.left = current.pending > 0;
            return self.after(now, self.parameters.costs.evicted_launch_ns, Happening::Close { queue });
        }
        self.open.push(queue);
        self.last = Some(queue);
        self.dispatch(now);
    }

    /// Gives blocks to compute units, as long as there is room.
    fn dispatch(&mut self, now: Nanos) {
        let mut order = self.open.clone();
        if self.parameters.has_priorities {
            // The first queue of each lane.
            order.sort_by_key(|&queue| !self.lanes.iter().any(|lane| lane.queues.start == queue));
        }
        for queue in order {
            self.leave_if_raised(queue);
            self.start_blocks(now, queue);
            self.start_pads(now, queue);
            if self.current(queue).is_over() {
                self.open.retain(|other| *other != queue);
                self.close(now, queue);
            }
        }
    }

    fn leave_if_raised(&mut self, queue: usize) {
        let place = &self.queues[queue];
        let is_raised = place.current.as_ref().is_some_and(|current| self.is_raised(&current.launch));
        let current = self.current(queue);
        if is_raised && current.pending > 0 {
            (current.left, current.pending) = (true, 0);
        }
    }

    fn start_blocks(&mut self, now: Nanos, queue: usize) {
        let (capacity, used, costs, room) = (self.capacity(), self.used, self.parameters.costs, self.room(queue));
        let lane_used = self.lane(queue).used;
        self.count += 1;
        let group = self.count;
        let current = self.current(queue);
        let own = u64::from(current.running_blocks()) * current.each;
        let room = room.min((u64::from(current.own_units) * UNIT).saturating_sub(own));
        let blocks = (room / current.each).min(u64::from(current.pending)) as u32;
        if blocks == 0 {
            return;
        }
        current.pending -= blocks;
        current.began.get_or_insert(now);
        current.running.push(Group { number: group, blocks, began: now });
        let taken = u64::from(blocks) * current.each;
        // Pads are apart from it, everybody else's blocks are among its own.
        let pads: u64 =
            current.running_pads.iter().map(|running| u64::from(running.pad.shape.compute_units) * UNIT).sum();
        let profile = &current.launch.kernel.profile;
        let load = u128::from(lane_used - pads + taken) * u128::from(profile.occupancy());
        let on_each = load.div_ceil(u128::from(current.own_units) * u128::from(UNIT)) as usize;
        let wave_ns = profile.wave_ns[on_each.clamp(1, profile.wave_ns.len()) - 1];
        let contention = u128::from(costs.contention_permille) * u128::from(used - own - pads) / u128::from(capacity);
        let slower = contention as u64 + if current.launch.pads.is_empty() { 0 } else { costs.padding_permille };
        let took = if current.is_stuck { STUCK_KERNEL_NS } else { longer(wave_ns, slower) };
        self.take(queue, taken);
        self.after(now, took, Happening::GroupEnds { queue, group });
    }

    /// Begins with what runs beside the current launch of a queue, once there is room for it.
    fn start_pads(&mut self, now: Nanos, queue: usize) {
        while let Some(pad) = self.current(queue).pending_pads.last().cloned()
            && u64::from(pad.shape.compute_units) * UNIT <= self.room(queue)
        {
            self.count += 1;
            let group = self.count;
            self.take(queue, u64::from(pad.shape.compute_units) * UNIT);
            self.after(
                now,
                longer(pad.ns(), self.parameters.costs.padding_permille),
                Happening::GroupEnds { queue, group },
            );
            let current = self.current(queue);
            current.pending_pads.pop();
            current.running_pads.push(RunningPad { number: group, began: now, pad });
        }
    }

    fn group_ends(&mut self, now: Nanos, queue: usize, group: u64) {
        let Some(current) = &mut self.queues[queue].current else { return };
        let runs = current.running.iter().position(|running| running.number == group);
        if current.is_stuck && runs.is_some() {
            current.has_failed = true;
            self.stop_blocks(now, queue);
        } else if let Some(at) = runs {
            let group = current.running.swap_remove(at);
            let each = current.each;
            current.ran += group.blocks;
            self.free(queue, u64::from(group.blocks) * each);
            if self.watched.is_some() {
                let launch = self.current(queue).launch.clone();
                self.note(&launch, each, &group, now, false);
            }
        } else if let Some(at) = current.running_pads.iter().position(|running| running.number == group) {
            let running = current.running_pads.swap_remove(at);
            self.note_pad(&running, now);
            let SimPad { task, step, shape, kernel } = running.pad;
            self.free(queue, u64::from(shape.compute_units) * UNIT);
            let ran = self.ran.entry((task, step)).or_default();
            *ran = (*ran + shape.blocks).min(kernel.profile.blocks);
        } else {
            // It was stopped before.
            return;
        }
        self.dispatch(now);
    }

    /// Stops running blocks of a task whose launches carry an epoch that was raised since.
    fn interrupt(&mut self, now: Nanos, task: TaskId) {
        for queue in self.open.clone() {
            let launch = self.current(queue).launch.clone();
            if launch.task != task || !self.is_raised(&launch) {
                continue;
            }
            self.stop_blocks(now, queue);
        }
        self.dispatch(now);
    }

    /// Stops what runs of a queue's current launch; what has not begun does not begin.
    fn stop_blocks(&mut self, now: Nanos, queue: usize) {
        let current = self.current(queue);
        let (mut freed, each, launch) = (0, current.each, current.launch.clone());
        let stopped = std::mem::take(&mut current.running);
        current.pending = 0;
        for group in &stopped {
            current.left = true;
            current.stopped_blocks += group.blocks;
            freed += u64::from(group.blocks) * current.each;
            current.wasted_ns +=
                u64::from(group.blocks) * (now.0 - group.began.0) / u64::from(launch.kernel.profile.occupancy());
        }
        self.free(queue, freed);
        stopped.iter().for_each(|group| self.note(&launch, each, group, now, true));
    }

    /// The current launch of a queue is over; the next one comes.
    fn close(&mut self, now: Nanos, queue: usize) {
        let current = self.queues[queue].current.take().expect("the queue has come to a launch");
        let Current { launch, ran, began, left, has_failed, stopped_blocks, wasted_ns, .. } = current;
        if left {
            self.ran.insert((launch.task, launch.step), ran);
        }
        let end = match (has_failed, left) {
            (true, _) => LaunchEnd::Failed,
            (false, true) => LaunchEnd::Evicted,
            (false, false) => LaunchEnd::Complete,
        };
        let late_ns = if self.faults.late_completions.strikes() { LATE_COMPLETION_NS } else { 0 };
        let place = &mut self.queues[queue];
        place.untold.push_back(Ended { launch: launch.launch, end, began, at: now, stopped_blocks, wasted_ns });
        place.told_from = place.told_from.max(Nanos(now.0 + self.parameters.costs.completion_ns + late_ns));
        let told = place.told_from;
        self.after(told, 0, Happening::Tell { queue });
        self.fetch(now, queue);
    }
}

/// A time with so many thousandths more.
fn longer(ns: u64, permille: u64) -> u64 {
    ns + (u128::from(ns) * u128::from(permille) / 1000) as u64
}
