//! Clients, the scheduler and a device, in virtual time.

use crate::arrivals::Arrivals;
use crate::device::{Ended, SimDevice, SimLaunch, SimPad};
use crate::disb::{Load, Workload};
use crate::error::SimError;
use crate::faults::{DEATH_NS_MAX, Faults, LOST_WAKEUP_NS, WorldFaults};
use crate::model::Model;
use crate::occupancy::{Group, Occupied, place};
use crate::parameters::DeviceParameters;
use crate::report::{ClientReport, Distribution, PreemptionReport, Report};
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Event, LaneConfig, LaneId, LaunchId, LaunchProfile, Nanos, Outcome,
    PolicyEntry, SchedulerConfig, Step, TaskId, TaskSpec,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Compute units of their own for some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSetup {
    /// How many.
    pub compute_units: u32,
    /// The clients that call in the lane, by their ids; all others call in the default lane.
    pub clients: Vec<String>,
    /// When the lane is closed; its clients call in the default lane from then on.
    pub closes_at: Option<Nanos>,
}

/// Device queues of a lane.
const LANE_QUEUES: u32 = 2;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    /// The policy, a row of [`atoll_core::POLICIES`].
    pub policy: &'static PolicyEntry,
    /// The device.
    pub device: DeviceParameters,
    /// Launches each of its queues holds.
    pub queue_capacity: u32,
    /// Lanes beside the default one, whose compute units together are no more than the device's.
    pub lanes: &'a [LaneSetup],
    /// Who calls what.
    pub workload: &'a Workload,
    /// The models, by the names that the workload uses.
    pub models: &'a BTreeMap<String, Model>,
    /// What goes wrong, and how often.
    pub faults: Faults,
    /// Seed of everything random.
    pub seed: u64,
    /// Measure as DISB does, which hides queueing: a client has one call at a time, what is due
    /// meanwhile is skipped but for the last, and latency counts from the call's actual beginning.
    pub as_disb: bool,
}

/// A call that was not answered yet.
struct Call {
    client: usize,
    arrived: Nanos,
    is_real_time: bool,
    kernels: Arc<[Arc<crate::model::Kernel>]>,
    has_begun: bool,
    /// Launches of others that had to leave for it and are still on the device; empty if there were
    /// none.
    evicting: HashSet<LaunchId>,
    preempts: bool,
}

/// A client and what became of its calls.
struct Caller {
    arrivals: Arrivals,
    steps: Arc<[Step]>,
    profiles: Arc<[Option<LaunchProfile>]>,
    /// Whether a call is out, and whether another one is due (as DISB measures).
    is_busy: bool,
    is_late: bool,
    scheduled: u64,
    dropped: u64,
    latencies: Vec<u64>,
}

#[derive(Default)]
struct Preemptions {
    totals: Vec<u64>,
    drains: Vec<u64>,
    stopped_blocks: u64,
    wasted_ns: u64,
}

struct World<'a> {
    simulation: &'a Simulation<'a>,
    scheduler: DeviceScheduler,
    device: SimDevice,
    callers: Vec<Caller>,
    calls: HashMap<TaskId, Call>,
    /// Launches on the device: whose they are.
    launches: HashMap<LaunchId, TaskId>,
    /// When the inputs of tasks will be in place.
    prepared: BinaryHeap<Reverse<(Nanos, TaskId)>>,
    /// The next call of each client.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Calls whose clients will be dead.
    deaths: BinaryHeap<Reverse<(Nanos, TaskId)>>,
    /// Ends of launches that woke nobody, in order, and when the scheduler looks at the latest.
    unheard: Vec<Ended>,
    heard_by: Option<Nanos>,
    faults: WorldFaults,
    /// What runs beside the launch that comes next.
    pads: Vec<SimPad>,
    /// Lanes that will be closed, and when.
    closing: BTreeSet<(Nanos, LaneId)>,
    /// Clients that are late for their next call.
    late: Vec<usize>,
    /// Whose each task is, by their numbers.
    owners: Vec<usize>,
    /// When the first real-time call met best-effort work.
    meeting: Option<Nanos>,
    now: Nanos,
    preemptions: Preemptions,
}

/// Runs a simulation to its end.
///
/// # Errors
/// A workload that calls a model there is none of.
pub fn simulate(simulation: &Simulation<'_>) -> Result<Report, SimError> {
    let mut world = World::new(simulation)?;
    world.run(Nanos(simulation.workload.duration_ns), |_| false);
    Ok(world.report())
}

/// Who was on which compute units in a window of a run, or around the moment at which the first
/// real-time call meets best-effort work; and that window, in nanoseconds.
///
/// # Errors
/// A workload that calls a model there is none of.
pub fn watch(
    simulation: &Simulation<'_>,
    window: Option<Range<u64>>,
    around: impl Fn(u64) -> Range<u64>,
) -> Result<(Vec<Occupied>, Range<u64>), SimError> {
    let end = Nanos(simulation.workload.duration_ns);
    let window = match window {
        Some(window) => window,
        None => {
            let mut world = World::new(simulation)?;
            world.run(end, |world| world.meeting.is_some());
            around(world.meeting.map_or(0, |at| at.0))
        }
    };
    let mut world = World::new(simulation)?;
    world.device.watch(Nanos(window.start));
    world.run(end.min(Nanos(window.end)), |_| false);
    Ok((world.occupied(), window))
}

impl<'a> World<'a> {
    fn new(simulation: &'a Simulation<'a>) -> Result<World<'a>, SimError> {
        let mut callers = Vec::new();
        for (number, client) in simulation.workload.clients.iter().enumerate() {
            let model = simulation.models.get(&client.model).ok_or_else(|| SimError::UnknownModel {
                client: client.id.clone(),
                model: client.model.clone(),
                known: simulation.models.keys().cloned().collect::<Vec<_>>().join(", "),
            })?;
            callers.push(Caller {
                arrivals: Arrivals::new(&client.load, simulation.seed.wrapping_add(number as u64)),
                steps: model.kernels.iter().map(|_| Step::Preemptible).collect(),
                profiles: model.kernels.iter().map(|kernel| Some(kernel.profile.clone())).collect(),
                is_busy: false,
                is_late: false,
                scheduled: 0,
                dropped: 0,
                latencies: Vec::new(),
            });
        }
        let config = SchedulerConfig {
            policy: simulation.policy,
            queues: simulation.device.queues,
            paired_queues: false,
            queue_capacity: simulation.queue_capacity,
            preempt_level: simulation.device.preempt_level,
            can_abort: false,
            compute_units: simulation.device.compute_units,
            best_effort_wait_ns_max: None,
            perturb: None,
        };
        let mut scheduler = DeviceScheduler::new(&config);
        let mut device = SimDevice::new(&simulation.device).with_faults(&simulation.faults, simulation.seed);
        for (number, lane) in (1..).zip(simulation.lanes) {
            let begin = simulation.device.queues + (number - 1) * LANE_QUEUES;
            let config = LaneConfig {
                lane: LaneId(number),
                queues: begin..begin + LANE_QUEUES,
                paired_queues: false,
                compute_units: lane.compute_units,
            };
            scheduler.open_lane(&config).map_err(SimError::Lane)?;
            device.open_lane(&config);
        }
        Ok(World {
            simulation,
            scheduler,
            device,
            callers,
            calls: HashMap::new(),
            launches: HashMap::new(),
            prepared: BinaryHeap::new(),
            due: BinaryHeap::new(),
            deaths: BinaryHeap::new(),
            unheard: Vec::new(),
            heard_by: None,
            faults: WorldFaults::new(&simulation.faults, simulation.seed),
            pads: Vec::new(),
            closing: (1..)
                .zip(simulation.lanes)
                .filter_map(|(number, lane)| Some((lane.closes_at?, LaneId(number))))
                .collect(),
            late: Vec::new(),
            owners: Vec::new(),
            meeting: None,
            now: Nanos(0),
            preemptions: Preemptions::default(),
        })
    }

    /// Runs until a time, or until it is said to be done.
    fn run(&mut self, end: Nanos, is_done: impl Fn(&Self) -> bool) {
        (0..self.callers.len()).for_each(|client| self.schedule(client));
        let mut told = Vec::new();
        loop {
            let due = self.due.peek().map(|Reverse((at, _))| *at);
            let prepared = self.prepared.peek().map(|Reverse((at, _))| *at);
            let death = self.deaths.peek().map(|Reverse((at, _))| *at);
            let closing = self.closing.first().map(|&(at, _)| at);
            let next = [self.device.next(), due, prepared, death, self.heard_by, self.scheduler.next_wakeup(), closing];
            let Some(now) = next.into_iter().flatten().min().filter(|now| *now <= end && !is_done(self)) else { break };
            self.now = now;
            self.device.advance(now, &mut told);
            for ended in told.drain(..) {
                self.hear(ended);
            }
            if self.heard_by.is_some_and(|at| at <= now) {
                self.hear_the_unheard();
            }
            while let Some(&(at, lane)) = self.closing.first()
                && at <= now
            {
                self.closing.remove(&(at, lane));
                self.close_lane(lane);
            }
            while let Some(&Reverse((at, client))) = self.due.peek()
                && at <= now
            {
                self.due.pop();
                self.schedule(client);
                self.due(client, at);
            }
            while let Some(client) = self.late.pop() {
                self.call(client, now);
            }
            while let Some(&Reverse((at, task))) = self.prepared.peek()
                && at <= now
            {
                self.prepared.pop();
                self.tell(Event::TaskPrepared { task });
            }
            while let Some(&Reverse((at, task))) = self.deaths.peek()
                && at <= now
            {
                self.deaths.pop();
                self.tell(Event::CancelTask { task });
            }
            if self.scheduler.next_wakeup().is_some_and(|at| at <= now) {
                self.tell(Event::Tick);
            }
        }
        self.device.advance(end, &mut told);
        self.now = end;
    }

    /// Puts the next call of a client on the calendar.
    fn schedule(&mut self, client: usize) {
        let next = self.callers[client].arrivals.next().filter(|at| *at < self.simulation.workload.duration_ns);
        self.due.extend(next.map(|at| Reverse((Nanos(at), client))));
    }

    fn due(&mut self, client: usize, at: Nanos) {
        let as_disb = self.simulation.as_disb;
        let caller = &mut self.callers[client];
        caller.scheduled += 1;
        if as_disb && caller.is_busy {
            caller.dropped += u64::from(std::mem::replace(&mut caller.is_late, true));
        } else {
            self.call(client, at);
        }
    }

    fn call(&mut self, client: usize, arrived: Nanos) {
        let Workload { clients, .. } = self.simulation.workload;
        let class = clients[client].class;
        let task = TaskId(self.owners.len() as u64);
        self.owners.push(client);
        if class == Class::RealTime && self.calls.values().any(|call| !call.is_real_time) {
            self.meeting.get_or_insert(arrived);
        }
        let caller = &mut self.callers[client];
        caller.is_busy = true;
        let kernels = Arc::clone(&self.simulation.models[&clients[client].model].kernels);
        let is_real_time = class == Class::RealTime;
        let call = Call {
            client,
            arrived,
            is_real_time,
            kernels,
            has_begun: false,
            evicting: HashSet::new(),
            preempts: false,
        };
        self.calls.insert(task, call);
        let (steps, profiles) = (Arc::clone(&caller.steps), Some(Arc::clone(&caller.profiles)));
        if self.faults.dead_clients.strikes() {
            let after = self.faults.dead_clients.below(DEATH_NS_MAX);
            self.deaths.push(Reverse((Nanos(self.now.0 + after), task)));
        }
        let (lane, client) = (self.lane_of(client), ClientId(0));
        let spec = TaskSpec {
            task,
            lane,
            client,
            class,
            priority: 0,
            steps,
            deadline: None,
            profiles,
            forks: None,
            ready: true,
        };
        self.tell_of(Some(task), Event::TaskArrived(spec));
    }

    /// The lane that a client calls in. Where that is closed, the scheduler takes the default one.
    fn lane_of(&self, client: usize) -> LaneId {
        let id = &self.simulation.workload.clients[client].id;
        let at = self.simulation.lanes.iter().position(|lane| lane.clients.contains(id));
        at.map_or(LaneId::DEFAULT, |at| LaneId(at as u32 + 1))
    }

    fn close_lane(&mut self, lane: LaneId) {
        let mut actions = Vec::new();
        self.scheduler.close_lane(self.now, lane, &mut actions).expect("it is open until then");
        self.do_all(None, actions);
    }

    /// A launch ended, and that wakes the scheduler, unless the wake-up is lost.
    fn hear(&mut self, ended: Ended) {
        self.unheard.push(ended);
        if self.faults.lost_wakeups.strikes() {
            self.heard_by.get_or_insert(Nanos(self.now.0 + LOST_WAKEUP_NS));
        } else {
            self.hear_the_unheard();
        }
    }

    /// Whatever wakes the scheduler, it looks at all there is.
    fn hear_the_unheard(&mut self) {
        self.heard_by = None;
        for ended in std::mem::take(&mut self.unheard) {
            self.launch_ended(&ended);
        }
    }

    fn launch_ended(&mut self, ended: &Ended) {
        let task = self.launches.remove(&ended.launch).expect("the device ends what it was given");
        self.preemptions.stopped_blocks += u64::from(ended.stopped_blocks);
        self.preemptions.wasted_ns += ended.wasted_ns;
        if let Some(began) = ended.began
            && let Some(call) = self.calls.get_mut(&task)
            && call.is_real_time
            && !std::mem::replace(&mut call.has_begun, true)
            && call.preempts
        {
            self.preemptions.totals.push(began.0 - call.arrived.0);
        }
        for call in self.calls.values_mut().filter(|call| !call.evicting.is_empty()) {
            if call.evicting.remove(&ended.launch) && call.evicting.is_empty() {
                // It may have been over, untold, when it was asked to leave.
                self.preemptions.drains.push(ended.at.0.saturating_sub(call.arrived.0));
            }
        }
        self.tell(Event::LaunchEnded { launch: ended.launch, end: ended.end });
    }

    fn tell(&mut self, event: Event) {
        self.tell_of(None, event);
    }

    /// Tells the scheduler, for the sake of a call perhaps, and does what it asks.
    fn tell_of(&mut self, caller: Option<TaskId>, event: Event) {
        self.hear_the_unheard();
        let mut fresh = Vec::new();
        self.scheduler.handle(self.now, event, &mut fresh);
        self.do_all(caller, fresh);
    }

    /// Does what the scheduler asks, and what it asks then.
    fn do_all(&mut self, caller: Option<TaskId>, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            if let Some(answer) = self.carry_out(caller, action) {
                let mut more = Vec::new();
                self.scheduler.handle(self.now, answer, &mut more);
                actions.extend(more);
            }
        }
    }

    fn carry_out(&mut self, caller: Option<TaskId>, action: Action) -> Option<Event> {
        match action {
            Action::CloseLane { lane } => self.device.close_lane(lane),
            Action::Prepare { task } => match self.model(task).before_ns {
                0 => return Some(Event::TaskPrepared { task }),
                ns => self.prepared.push(Reverse((Nanos(self.now.0 + ns), task))),
            },
            Action::Issue { launch, task, step, queue, epoch } => {
                let kernel = Arc::clone(&self.calls[&task].kernels[step as usize]);
                self.launches.insert(launch, task);
                let pads = std::mem::take(&mut self.pads);
                self.device.submit(self.now, queue, SimLaunch { launch, task, step, epoch, kernel, pads });
            }
            Action::Pad { task, step, shape, .. } => {
                let kernel = Arc::clone(&self.calls[&task].kernels[step as usize]);
                self.pads.push(SimPad { task, step, shape, kernel });
            }
            Action::RaiseEpoch { task, epoch } => {
                self.device.raise_epoch(self.now, task, epoch);
                let leaving = self.launches.iter().filter(|(_, owner)| **owner == task).map(|(launch, _)| *launch);
                if let Some(call) = caller.and_then(|caller| self.calls.get_mut(&caller)) {
                    call.evicting.extend(leaving);
                    call.preempts = true;
                }
            }
            Action::FinishTask { task, outcome, .. } => self.finish(task, outcome),
            Action::RunHostStep { .. } | Action::Abort { .. } | Action::DeclareHung { .. } => {
                unreachable!("models have no host steps, and nobody cancels")
            }
        }
        None
    }

    /// What a task calls.
    fn model(&self, task: TaskId) -> &Model {
        &self.simulation.models[&self.simulation.workload.clients[self.calls[&task].client].model]
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) {
        let answered = Nanos(self.now.0 + self.model(task).after_ns);
        let call = self.calls.remove(&task).expect("a call is finished once");
        self.device.forget(task);
        let caller = &mut self.callers[call.client];
        match outcome {
            Outcome::Complete => caller.latencies.push(answered.0 - call.arrived.0),
            _ => caller.dropped += 1,
        }
        caller.is_busy = false;
        if std::mem::take(&mut caller.is_late) {
            self.late.push(call.client);
        }
        // Who was refused does not ask again at once, and for ever; who died, or whose kernel was ended,
        // does.
        let asks_again = matches!(outcome, Outcome::Complete | Outcome::Cancelled | Outcome::Failed);
        if self.simulation.workload.clients[call.client].load == Load::Continuous && asks_again {
            self.due.push(Reverse((answered, call.client)));
        }
    }

    fn occupied(self) -> Vec<Occupied> {
        let (owners, unit) = (self.owners, SimDevice::UNIT as f64);
        let occupied = |(group, pieces): (Group, Vec<Range<u64>>)| Occupied {
            client: owners[group.task.0 as usize],
            kernel: group.kernel.name.clone(),
            blocks: group.blocks,
            units: pieces.into_iter().map(|piece| piece.start as f64 / unit..piece.end as f64 / unit).collect(),
            began: group.began,
            ended: group.ended,
            was_cut: group.was_cut,
            is_padding: group.is_padding,
        };
        place(self.device.watched()).into_iter().map(occupied).collect()
    }

    fn report(mut self) -> Report {
        let Simulation { policy, device, workload, .. } = self.simulation;
        for call in self.calls.values() {
            self.callers[call.client].dropped += 1;
        }
        self.callers.iter_mut().for_each(|caller| caller.dropped += u64::from(caller.is_late));
        let clients = self.callers.into_iter().zip(&workload.clients).map(|(caller, client)| ClientReport {
            id: client.id.clone(),
            class: client.class,
            scheduled: caller.scheduled,
            served: caller.latencies.len() as u64,
            dropped: caller.dropped,
            latency_us: Distribution::of(caller.latencies.clone()),
            latencies_ns: caller.latencies,
        });
        let Preemptions { totals, drains, stopped_blocks, wasted_ns } = self.preemptions;
        let count = totals.len() as u64;
        let us = |ns: u64| ns as f64 / 1e3;
        let preemption = PreemptionReport {
            count,
            total_us: Distribution::of(totals),
            flag_us: Some(us(device.costs.flag_ns)),
            drain_us: Distribution::of(drains),
            interrupt_us: Some(us(device.costs.interrupt_ns)),
            restore_us: Some(us(wasted_ns) / count.max(1) as f64),
            reexecuted_blocks: stopped_blocks,
        };
        Report {
            variant: workload.variant(self.simulation.as_disb),
            policy: policy.name.to_owned(),
            device: format!("sim:{}", device.name),
            duration_s: workload.duration_ns as f64 / 1e9,
            clients: clients.collect(),
            preemption,
            padded_launches: self.scheduler.counters().padded_launches,
            padding_blocks: self.scheduler.counters().padding_blocks,
            faults: self.faults.counts(self.device.faults()),
            utilisation: self.device.utilisation(),
        }
    }
}
