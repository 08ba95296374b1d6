//! The simulation loop: clients, the scheduler and a device in virtual time.

mod dependents;
mod results;
mod shares;

pub use shares::{Received, ShareSetup, simulate_shares};

use crate::arrivals::Arrivals;
use crate::device::{Ended, SimDevice};
use crate::disb::{Load, Workload};
use crate::error::SimError;
use crate::faults::{DEATH_NS_MAX, Faults, LOST_WAKEUP_NS, WorldFaults};
use crate::model::Model;
use crate::node::{Kernels, Node};
use crate::occupancy::Occupied;
use crate::parameters::DeviceParameters;
use crate::report::Report;
use atoll_core::tokens::Span;
use atoll_core::{
    Action, Class, ClientId, Event, LaneConfig, LaneId, LaunchId, LaunchProfile, Nanos, Outcome, PaddingOptions,
    PolicyEntry, Step, TaskId, TaskSpec,
};
use dependents::Dependents;
use results::Preemptions;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A lane: compute units reserved for some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSetup {
    /// The number of compute units.
    pub compute_units: u32,
    /// The units of the device to which the clients are bound. Such a lane has its shares in the
    /// ledger of the default lane, and may have units in common with others: clients whose units
    /// overlap never have tokens at the same time. `None` for a lane with a ledger of its own.
    pub span: Option<Span>,
    /// The ids of the clients that call in the lane. All other clients call in the default lane.
    pub clients: Vec<String>,
    /// When the lane is closed. From then on its clients call in the default lane.
    pub closes_at: Option<Nanos>,
}

/// The number of device queues of a lane.
const LANE_QUEUES: u32 = 2;

/// The set-up of a simulation.
#[derive(Clone, Debug)]
pub struct Simulation<'a> {
    /// The policy, a row of [`atoll_core::POLICIES`].
    pub policy: &'static PolicyEntry,
    /// The device.
    pub device: DeviceParameters,
    /// The capacity of each device queue, in launches.
    pub queue_capacity: u32,
    /// Lanes besides the default one. Those without a span have together at most the compute units
    /// of the device.
    pub lanes: &'a [LaneSetup],
    /// The clients and their loads.
    pub workload: &'a Workload,
    /// The models by their names in the workload.
    pub models: &'a BTreeMap<String, Model>,
    /// The options of padding.
    pub padding: PaddingOptions,
    /// The fault rates.
    pub faults: Faults,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Measure as DISB does, which hides queueing. A client has one call at a time. Of the calls
    /// that become due while it runs, only the last one is made. Latency counts from the actual
    /// start of a call.
    pub as_disb: bool,
}

/// A call without an answer yet.
struct Call {
    client: usize,
    serial: u64,
    arrived: Nanos,
    is_real_time: bool,
    has_begun: bool,
    /// Evicted launches of other tasks that are still on the device; empty if the call preempted
    /// none.
    evicting: HashSet<LaunchId>,
    preempts: bool,
    /// Whether it is a real-time call that found only best-effort launches on the device.
    meets_best_effort: bool,
}

/// A client with the results of its calls.
struct Caller {
    arrivals: Arrivals,
    steps: Arc<[Step]>,
    profiles: Arc<[Option<LaunchProfile>]>,
    /// Whether a call is running, and whether another one is due. Only used with `as_disb`.
    is_busy: bool,
    is_late: bool,
    /// The serial number of the call that became due last; see [`Dependents`].
    serial: u64,
    scheduled: u64,
    dropped: u64,
    latencies: Vec<u64>,
}

struct World<'a> {
    simulation: &'a Simulation<'a>,
    node: Node,
    callers: Vec<Caller>,
    calls: HashMap<TaskId, Call>,
    /// When the inputs of tasks will be copied.
    prepared: BinaryHeap<Reverse<(Nanos, TaskId)>>,
    /// The arrival time of the next call of each client.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// When the clients of calls die.
    deaths: BinaryHeap<Reverse<(Nanos, TaskId)>>,
    /// Completions without a wake-up, in order, and when the scheduler notices them at the latest.
    pending_completions: Vec<Ended>,
    wakeup_by: Option<Nanos>,
    faults: WorldFaults,
    shares: shares::Shares,
    /// When lanes are closed.
    closing: BTreeSet<(Nanos, LaneId)>,
    /// Clients whose next call is overdue.
    late: Vec<usize>,
    dependents: Dependents,
    /// The client of each task, by task id.
    owners: Vec<usize>,
    /// When a real-time call first arrived during best-effort work.
    meeting: Option<Nanos>,
    now: Nanos,
    preemptions: Preemptions,
}

/// Runs a simulation to its end.
///
/// # Errors
/// If the workload calls an unknown model, or the device cannot be divided into the lanes.
pub fn simulate(simulation: &Simulation<'_>) -> Result<Report, SimError> {
    let mut world = World::new(simulation)?;
    world.run(Nanos(simulation.workload.duration_ns), |_| false);
    Ok(world.report())
}

/// The groups of blocks that ran in a window of a run, and that window in nanoseconds. Without a
/// given window it is `around` the first arrival of a real-time call during best-effort work.
///
/// # Errors
/// If the workload calls an unknown model, or the device cannot be divided into the lanes.
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
    world.node.device.watch(Nanos(window.start));
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
                serial: 0,
                scheduled: 0,
                dropped: 0,
                latencies: Vec::new(),
            });
        }
        let device = SimDevice::new(&simulation.device).with_faults(&simulation.faults, simulation.seed);
        let mut node = Node::new(simulation.policy, device, simulation.queue_capacity);
        node.scheduler.configure_padding(simulation.padding);
        for (number, lane) in (1..).zip(simulation.lanes) {
            let begin = simulation.device.queues + (number - 1) * LANE_QUEUES;
            let config = LaneConfig {
                lane: LaneId(number),
                queues: begin..begin + LANE_QUEUES,
                paired_queues: false,
                compute_units: lane.compute_units,
            };
            node.scheduler.open_lane(&config).map_err(SimError::Lane)?;
            if let Some(span) = lane.span {
                node.scheduler.join_lane(config.lane, span).expect("the lane was just opened");
            }
            node.device.open_lane(&config);
        }
        Ok(World {
            simulation,
            node,
            callers,
            calls: HashMap::new(),
            prepared: BinaryHeap::new(),
            due: BinaryHeap::new(),
            deaths: BinaryHeap::new(),
            pending_completions: Vec::new(),
            wakeup_by: None,
            faults: WorldFaults::new(&simulation.faults, simulation.seed),
            shares: shares::Shares::default(),
            closing: (1..)
                .zip(simulation.lanes)
                .filter_map(|(number, lane)| Some((lane.closes_at?, LaneId(number))))
                .collect(),
            late: Vec::new(),
            dependents: Dependents::new(&simulation.workload.clients)?,
            owners: Vec::new(),
            meeting: None,
            now: Nanos(0),
            preemptions: Preemptions::default(),
        })
    }

    /// Runs until `end`, or until `is_done`.
    fn run(&mut self, end: Nanos, is_done: impl Fn(&Self) -> bool) {
        (0..self.callers.len()).for_each(|client| self.schedule(client));
        let mut ended = Vec::new();
        loop {
            let due = self.due.peek().map(|Reverse((at, _))| *at);
            let prepared = self.prepared.peek().map(|Reverse((at, _))| *at);
            let death = self.deaths.peek().map(|Reverse((at, _))| *at);
            let closing = self.closing.first().map(|&(at, _)| at);
            let removal = self.next_removal();
            let next = [self.node.next(), due, prepared, death, self.wakeup_by, closing, removal];
            let Some(now) = next.into_iter().flatten().min().filter(|now| *now <= end && !is_done(self)) else { break };
            self.now = now;
            self.node.device.advance(now, &mut ended);
            for ended in ended.drain(..) {
                self.completion(ended);
            }
            if self.wakeup_by.is_some_and(|at| at <= now) {
                self.deliver_completions();
            }
            while let Some(&(at, lane)) = self.closing.first()
                && at <= now
            {
                self.closing.remove(&(at, lane));
                self.close_lane(lane);
            }
            self.remove_shares();
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
                self.notify(Event::TaskPrepared { task });
            }
            while let Some(&Reverse((at, task))) = self.deaths.peek()
                && at <= now
            {
                self.deaths.pop();
                self.notify(Event::CancelTask { task });
            }
            if self.node.scheduler.next_wakeup().is_some_and(|at| at <= now) {
                self.notify(Event::Tick);
            }
        }
        self.node.device.advance(end, &mut ended);
        self.now = end;
    }

    /// Schedules the next call of a client.
    fn schedule(&mut self, client: usize) {
        let next = self.callers[client].arrivals.next().filter(|at| *at < self.simulation.workload.duration_ns);
        self.due.extend(next.map(|at| Reverse((Nanos(at), client))));
    }

    fn due(&mut self, client: usize, at: Nanos) {
        let as_disb = self.simulation.as_disb;
        let caller = &mut self.callers[client];
        caller.serial = self.dependents.serial(client, caller.scheduled);
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
        let kernels: Kernels = Arc::clone(&self.simulation.models[&clients[client].model].kernels);
        let is_real_time = class == Class::RealTime;
        let is_only_one = !self.calls.values().any(|call| call.is_real_time);
        let meets_best_effort = is_real_time && is_only_one && !self.node.is_idle();
        let call = Call {
            client,
            serial: caller.serial,
            arrived,
            is_real_time,
            has_begun: false,
            evicting: HashSet::new(),
            preempts: false,
            meets_best_effort,
        };
        self.calls.insert(task, call);
        let (steps, profiles) = (Arc::clone(&caller.steps), Some(Arc::clone(&caller.profiles)));
        if self.faults.dead_clients.happens() {
            let after = self.faults.dead_clients.below(DEATH_NS_MAX);
            self.deaths.push(Reverse((Nanos(self.now.0 + after), task)));
        }
        let (lane, client) = (self.lane_of(client), ClientId(client as u32));
        let spec = TaskSpec {
            task,
            lane,
            client,
            class,
            priority: 0,
            steps,
            deadline: None,
            due: None,
            profiles,
            forks: None,
            ready: true,
        };
        self.node.add(&spec, kernels);
        self.notify_for(Some(task), Event::TaskArrived(spec));
    }

    /// The lane that a client calls in. If it is closed, the scheduler uses the default lane.
    fn lane_of(&self, client: usize) -> LaneId {
        let id = &self.simulation.workload.clients[client].id;
        let at = self.simulation.lanes.iter().position(|lane| lane.clients.contains(id));
        at.map_or(LaneId::DEFAULT, |at| LaneId(at as u32 + 1))
    }

    fn close_lane(&mut self, lane: LaneId) {
        let mut actions = Vec::new();
        self.node.scheduler.close_lane(self.now, lane, &mut actions).expect("the lane is closed once, at its time");
        self.carry_out_all(None, actions);
    }

    /// A launch ended. This wakes the scheduler, unless the wake-up is lost.
    fn completion(&mut self, ended: Ended) {
        self.pending_completions.push(ended);
        if self.faults.lost_wakeups.happens() {
            self.wakeup_by.get_or_insert(Nanos(self.now.0 + LOST_WAKEUP_NS));
        } else {
            self.deliver_completions();
        }
    }

    /// Passes all pending completions to the scheduler, which reads all of them at any wake-up.
    fn deliver_completions(&mut self) {
        self.wakeup_by = None;
        for ended in std::mem::take(&mut self.pending_completions) {
            self.launch_ended(&ended);
        }
    }

    fn launch_ended(&mut self, ended: &Ended) {
        let task = self.node.ended(ended);
        self.preemptions.stopped_blocks += u64::from(ended.stopped_blocks);
        self.preemptions.wasted_ns += ended.wasted_ns;
        if let Some(began) = ended.began
            && let Some(call) = self.calls.get_mut(&task)
            && call.is_real_time
            && !std::mem::replace(&mut call.has_begun, true)
        {
            let waited = began.0 - call.arrived.0;
            self.preemptions.totals.extend(call.preempts.then_some(waited));
            self.preemptions.first_blocks.extend(call.meets_best_effort.then_some(waited));
        }
        for call in self.calls.values_mut().filter(|call| !call.evicting.is_empty()) {
            if call.evicting.remove(&ended.launch) && call.evicting.is_empty() {
                // The launch may have ended before it was evicted, with its completion still
                // pending.
                self.preemptions.drains.push(ended.at.0.saturating_sub(call.arrived.0));
            }
        }
        self.note_busy(task, ended);
        self.notify(Event::LaunchEnded { launch: ended.launch, end: ended.end });
    }

    fn notify(&mut self, event: Event) {
        self.notify_for(None, event);
    }

    /// Passes an event to the scheduler and carries out the resulting actions. If the event is the
    /// arrival of a call, that call is `caller`: preemptions are counted as its own.
    fn notify_for(&mut self, caller: Option<TaskId>, event: Event) {
        self.deliver_completions();
        let mut actions = Vec::new();
        self.node.scheduler.handle(self.now, event, &mut actions);
        self.carry_out_all(caller, actions);
    }

    /// Carries out actions, and the actions that result from them.
    fn carry_out_all(&mut self, caller: Option<TaskId>, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            if let Some(answer) = self.carry_out(caller, action) {
                let mut more = Vec::new();
                self.node.scheduler.handle(self.now, answer, &mut more);
                actions.extend(more);
            }
        }
    }

    fn carry_out(&mut self, caller: Option<TaskId>, action: Action) -> Option<Event> {
        self.node.carry_out(self.now, &action);
        match action {
            Action::Prepare { task } => match self.model(task).before_ns {
                0 => return Some(Event::TaskPrepared { task }),
                ns => self.prepared.push(Reverse((Nanos(self.now.0 + ns), task))),
            },
            Action::RaiseEpoch { task, .. } => {
                if let Some(call) = caller.and_then(|caller| self.calls.get_mut(&caller)) {
                    call.evicting.extend(self.node.launches_of(task));
                    call.preempts = true;
                }
            }
            Action::FinishTask { task, outcome, .. } => self.finish(task, outcome),
            _ => {}
        }
        None
    }

    /// The model that a task runs.
    fn model(&self, task: TaskId) -> &Model {
        &self.simulation.models[&self.simulation.workload.clients[self.calls[&task].client].model]
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) {
        let answered = Nanos(self.now.0 + self.model(task).after_ns);
        let call = self.calls.remove(&task).expect("a call is finished once");
        let caller = &mut self.callers[call.client];
        match outcome {
            Outcome::Complete => {
                caller.latencies.push(answered.0 - call.arrived.0);
                let followers = self.dependents.answered(call.client, call.serial);
                self.due.extend(followers.into_iter().map(|follower| Reverse((answered, follower))));
            }
            _ => caller.dropped += 1,
        }
        caller.is_busy = false;
        if std::mem::take(&mut caller.is_late) {
            self.late.push(call.client);
        }
        // A client whose call was rejected does not call again: it would be rejected again at the
        // same time, without end. A client that died, or whose kernel the device ended, calls
        // again.
        let calls_again = matches!(outcome, Outcome::Complete | Outcome::Cancelled | Outcome::Failed);
        if self.simulation.workload.clients[call.client].load == Load::Continuous && calls_again {
            self.due.push(Reverse((answered, call.client)));
        }
    }
}
