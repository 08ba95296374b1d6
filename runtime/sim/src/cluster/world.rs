//! The main loop: handles events in the order of time, and lets the pool decide after each time.

use super::device::Device;
use super::full::{Over, Plan};
use super::plain::{Accepted, PlainDevice};
use super::report::{ClusterReport, LaunchReport, MemoryReport, Scheduled, Waits};
use super::setup::{Cluster, ClusterDevice, ClusterFault, FaultKind, NodeModel, NodeSetup};
use atoll_core::placement::{
    DeviceSpec, Expected, FunctionId, FunctionSpec, Pool, PoolAction, PoolEvent, RequestEnd, RequestId, RequestSpec,
};
use atoll_core::{Class, DeviceId, Nanos, Outcome};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Runs a cluster until all requests are answered or rejected. Requests that wait for a device that
/// never comes back are counted as neither. Requests that the launch scheduler or the memory of a
/// device refuses are retried like those of lost devices.
pub fn simulate_cluster(cluster: &Cluster) -> ClusterReport {
    let mut world = World::new(cluster);
    world.start();
    while let Some(now) = world.next_time() {
        world.step(now);
    }
    (0..cluster.devices.len()).for_each(|device| world.count_decisions(device));
    let mut report = world.report;
    report.finish(cluster.functions.iter().map(|function| function.name.clone()));
    report
}

/// Events of devices. At the same time, ends of requests come before ends of loads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DeviceEvent {
    /// The end of a request, unless a preemption has delayed it.
    End {
        request: usize,
    },
    /// The launches or copies of a full device make progress.
    Wake,
    Loaded {
        function: usize,
    },
}

struct World<'a> {
    cluster: &'a Cluster,
    pool: Pool,
    devices: Vec<Option<Device>>,
    /// How often each device was lost. Events from before a loss are ignored.
    lives: Vec<u32>,
    /// Time, event, index of the device, and its `lives` when the event was created.
    events: BinaryHeap<Reverse<(u64, DeviceEvent, usize, u32)>>,
    /// Requests by the time of their announcement.
    announced: Vec<usize>,
    /// Index of the next one in `announced`.
    next_announced: usize,
    next_fault: usize,
    /// The launches of each function, by the function and the bits of the device's speed.
    plans: HashMap<(usize, u64), Plan>,
    /// Start of each request in flight.
    starts: Vec<u64>,
    attempts: Vec<u32>,
    /// Requests that are neither answered nor rejected.
    open: usize,
    actions: Vec<PoolAction>,
    /// Whether the pool has received an event since its last decision.
    noted: bool,
    report: ClusterReport,
}

impl<'a> World<'a> {
    fn new(cluster: &'a Cluster) -> World<'a> {
        let is_full = matches!(cluster.node, NodeModel::Scheduler(_));
        let mut announced: Vec<usize> = (0..cluster.arrivals.len()).collect();
        announced.sort_by_key(|request| cluster.announced_at(&cluster.arrivals[*request]));
        World {
            cluster,
            pool: Pool::new(cluster.pool),
            devices: cluster.devices.iter().map(|_| None).collect(),
            lives: vec![0; cluster.devices.len()],
            events: BinaryHeap::new(),
            announced,
            next_announced: 0,
            next_fault: 0,
            plans: HashMap::new(),
            starts: vec![0; cluster.arrivals.len()],
            attempts: vec![0; cluster.arrivals.len()],
            open: cluster.arrivals.len(),
            actions: Vec::new(),
            noted: false,
            report: ClusterReport {
                waits: Waits::default(),
                functions: Vec::new(),
                total_ns: 0,
                cold: 0,
                loads: 0,
                evictions: 0,
                moves: 0,
                retries: 0,
                rejected: 0,
                dispatches: 0,
                launches: is_full.then(LaunchReport::default),
                memory: is_full.then(MemoryReport::default),
                schedule: Vec::new(),
            },
        }
    }

    fn start(&mut self) {
        for device in 0..self.devices.len() {
            self.add_device(0, device);
        }
        for (index, function) in self.cluster.functions.iter().enumerate() {
            let times = |device: &ClusterDevice| Expected {
                service: Some(Nanos(device.service_ns(function))),
                reload: Some(Nanos(function.reload_ns)),
            };
            let mut expected: Vec<_> = match self.cluster.times_known {
                true => self.cluster.devices.iter().map(|device| (device.kind, times(device))).collect(),
                false => Vec::new(),
            };
            expected.sort_by_key(|(kind, _)| *kind);
            expected.dedup_by_key(|(kind, _)| *kind);
            let spec = FunctionSpec {
                group: function.group,
                constant_bytes: function.constant_bytes,
                suits: function.suits.clone(),
                expected,
            };
            self.note(0, PoolEvent::FunctionAdded { function: FunctionId(index as u32), spec });
        }
    }

    fn note(&mut self, now: u64, event: PoolEvent) {
        self.noted = true;
        self.pool.note(Nanos(now), event, &mut self.actions);
    }

    fn add_device(&mut self, now: u64, index: usize) {
        let device = self.cluster.devices[index];
        self.devices[index] = Some(Device::new(device, self.cluster));
        let spec = DeviceSpec { kind: device.kind, slots: device.slots, memory_bytes: device.memory_bytes };
        self.note(now, PoolEvent::DeviceAdded { device: DeviceId(index as u16), spec });
    }

    /// The time of the next event; `None` if nothing is left to do.
    fn next_time(&self) -> Option<u64> {
        if self.open == 0 {
            return None;
        }
        let device = self.events.peek().map(|Reverse(first)| first.0);
        let request = self.announced.get(self.next_announced);
        let request = request.map(|request| self.cluster.announced_at(&self.cluster.arrivals[*request]));
        let fault = self.cluster.faults.get(self.next_fault).map(|fault| fault.at_ns);
        let wakeup = self.pool.wakeup().map(|at| at.0);
        let next = [device, request, fault, wakeup].into_iter().flatten().min()?;
        let step = self.cluster.step.map(|step| self.pool_now() + step.0);
        Some(step.map_or(next, |step| step.min(next)))
    }

    fn pool_now(&self) -> u64 {
        self.pool.now().0
    }

    /// Handles all events of one time, then lets the pool decide.
    fn step(&mut self, now: u64) {
        while self.events.peek().is_some_and(|Reverse(first)| first.0 == now) {
            let Some(Reverse((_, event, device, life))) = self.events.pop() else { break };
            if self.lives[device] == life {
                self.device_event(now, event, device);
            }
        }
        while let Some(&fault) = self.cluster.faults.get(self.next_fault).filter(|fault| fault.at_ns <= now) {
            self.next_fault += 1;
            self.fault(now, fault);
        }
        while let Some(&request) = self.announced.get(self.next_announced) {
            let arrival = self.cluster.arrivals[request];
            if self.cluster.announced_at(&arrival) > now {
                break;
            }
            self.next_announced += 1;
            let spec = RequestSpec {
                function: FunctionId(arrival.function as u32),
                class: self.cluster.functions[arrival.function].class,
                is_batched: false,
                arrival: Nanos(arrival.at_ns),
                deadline: None,
                may_retry: true,
            };
            self.note(now, PoolEvent::Arrived { request: RequestId(request as u64), spec });
        }
        self.note(now, PoolEvent::Tick);
        // Devices may report events at once, which may cause further decisions.
        self.noted = true;
        while std::mem::take(&mut self.noted) {
            self.pool.decide(Nanos(now), &mut self.actions);
            self.act(now);
        }
    }

    /// Executes the pool's actions, including those that they cause.
    fn act(&mut self, now: u64) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    PoolAction::Dispatch { request, device } => self.dispatch(now, request, device),
                    PoolAction::Reject { .. } => {
                        self.report.rejected += 1;
                        self.open -= 1;
                    }
                    PoolAction::Load { function, device } => self.load(now, function, device),
                    PoolAction::Unload { function, device } => self.unload(now, function, device),
                    PoolAction::Move { from, .. } => self.report.moves += usize::from(from.is_some()),
                }
            }
        }
    }

    fn dispatch(&mut self, now: u64, request: RequestId, device: DeviceId) {
        let index = request.0 as usize;
        self.report.dispatches += 1;
        self.report.retries += usize::from(self.attempts[index] > 0);
        self.attempts[index] += 1;
        self.starts[index] = now;
        match &self.cluster.node {
            NodeModel::Plain => {
                self.run(now, index, usize::from(device.0));
            }
            NodeModel::Scheduler(setup) => self.submit(now, index, usize::from(device.0), setup),
        }
    }

    /// Starts a request on a plain device. Returns `false` if the request waits there until its
    /// constants have room.
    fn run(&mut self, now: u64, request: usize, device: usize) -> bool {
        let function = self.cluster.arrivals[request].function;
        let spec = &self.cluster.functions[function];
        let state = self.devices[device].as_mut().and_then(Device::plain);
        let state = state.expect("the pool dispatches to devices that are there");
        let life = self.lives[device];
        let Some(accepted) = state.accept(now, request, function, spec) else { return false };
        if state.running.last().is_some_and(|running| running.cold) {
            self.report.cold += 1;
        }
        // A real-time request delays the ends of all others.
        let first = if spec.class == Class::RealTime { 0 } else { state.running.len() - 1 };
        for running in &state.running[first..] {
            let event = DeviceEvent::End { request: running.request };
            self.events.push(Reverse((running.end_ns, event, device, life)));
        }
        self.follow(now, function, device, accepted);
        true
    }

    /// Starts a request on a full device.
    fn submit(&mut self, now: u64, request: usize, device: usize, setup: &NodeSetup) {
        let index = self.cluster.arrivals[request].function;
        let (function, spec) = (&self.cluster.functions[index], &self.cluster.devices[device]);
        let plan = self.plans.entry((index, spec.speed.to_bits())).or_insert_with(|| Plan::of(setup, function, spec));
        let state = self.devices[device].as_mut().and_then(Device::full);
        let state = state.expect("the pool dispatches to devices that are there");
        self.report.cold += usize::from(state.start(now, request, index, function, plan));
        self.settle(now, device);
    }

    /// Reports evictions and the end of the load.
    fn follow(&mut self, now: u64, function: usize, device: usize, accepted: Accepted) {
        for evicted in accepted.evicted {
            self.report.evictions += 1;
            let event = PoolEvent::Evicted { device: DeviceId(device as u16), function: FunctionId(evicted as u32) };
            self.note(now, event);
        }
        if let Some(at) = accepted.loaded_at {
            self.events.push(Reverse((at, DeviceEvent::Loaded { function }, device, self.lives[device])));
        }
    }

    fn load(&mut self, now: u64, function: FunctionId, device: DeviceId) {
        let (index, at) = (function.0 as usize, usize::from(device.0));
        let spec = &self.cluster.functions[index];
        let is_loaded = match self.devices[at].as_mut().expect("the pool loads onto devices that are there") {
            Device::Plain(state) => {
                let accepted = state.preload(now, index, spec);
                let is_loaded = accepted.is_some();
                accepted.into_iter().for_each(|accepted| self.follow(now, index, at, accepted));
                is_loaded
            }
            Device::Full(state) => {
                state.preload(now, index, spec);
                let is_loaded = state.holds(index);
                self.settle(now, at);
                is_loaded
            }
        };
        match is_loaded {
            true => self.report.loads += 1,
            false => self.note(now, PoolEvent::Evicted { device, function }),
        }
    }

    fn unload(&mut self, now: u64, function: FunctionId, device: DeviceId) {
        let (index, at) = (function.0 as usize, usize::from(device.0));
        let Some(state) = self.devices[at].as_mut() else { return };
        if let Some(state) = state.full() {
            state.unload(now, index);
            return self.settle(now, at);
        }
        if state.plain().is_some_and(|state| state.unload(index)) {
            self.report.evictions += 1;
            self.note(now, PoolEvent::Evicted { device, function });
        }
    }

    fn device_event(&mut self, now: u64, event: DeviceEvent, device: usize) {
        match (event, self.devices[device].as_mut().expect("events of lost devices are ignored")) {
            (DeviceEvent::Wake, Device::Full(state)) => {
                state.advance(now);
                self.settle(now, device);
            }
            (DeviceEvent::Loaded { function }, Device::Plain(state)) => {
                state.loaded(function);
                let (id, function) = (DeviceId(device as u16), FunctionId(function as u32));
                self.note(now, PoolEvent::Resident { device: id, function });
                self.unblock(now, device);
            }
            (DeviceEvent::End { request }, Device::Plain(state)) => {
                // Another event was created for a request that ends later.
                let Some(running) = state.end(now, request) else { return };
                let function = &self.cluster.functions[running.function];
                let service = Nanos(self.cluster.devices[device].service_ns(function));
                self.over(now, device, Over { request, outcome: Outcome::Complete, service, cold: running.cold });
                self.unblock(now, device);
            }
            (DeviceEvent::Wake, Device::Plain(_)) | (_, Device::Full(_)) => {
                unreachable!("a device gets the events of its model")
            }
        }
    }

    /// Tells the pool how a request ended.
    fn over(&mut self, now: u64, device: usize, over: Over) {
        let Over { request, outcome, service, cold } = over;
        let arrival = self.cluster.arrivals[request];
        let function = &self.cluster.functions[arrival.function];
        let end = if outcome == Outcome::Complete {
            self.open -= 1;
            let start_ns = self.starts[request];
            self.report.schedule.push(Scheduled { start_ns, arrival, device, cold, end_ns: now });
            RequestEnd::Done { service, loaded: cold.then_some(Nanos(function.reload_ns)) }
        } else {
            RequestEnd::Failed { retryable: true }
        };
        let (request, id) = (RequestId(request as u64), DeviceId(device as u16));
        self.note(now, PoolEvent::Finished { request, device: id, end });
    }

    /// Tells the pool what happened on a full device, and schedules the device's next wake-up.
    fn settle(&mut self, now: u64, device: usize) {
        let Some(state) = self.devices[device].as_mut().and_then(Device::full) else { return };
        let (over, mut changes) = (state.take_over(), state.take_changes());
        // The pool believes that a device holds the constants of all requests that it got.
        let refused = over.iter().filter(|over| over.outcome != Outcome::Complete);
        let refused = refused.map(|over| self.cluster.arrivals[over.request].function);
        changes.extend(refused.filter(|function| !state.holds(*function)).map(|function| (function, false)));
        if let Some(at) = state.wake_at(now) {
            self.events.push(Reverse((at, DeviceEvent::Wake, device, self.lives[device])));
        }
        for (function, is_held) in changes {
            let (device, function) = (DeviceId(device as u16), FunctionId(function as u32));
            let event = match is_held {
                true => PoolEvent::Resident { device, function },
                false => PoolEvent::Evicted { device, function },
            };
            self.note(now, event);
        }
        for over in over {
            self.over(now, device, over);
        }
    }

    /// Adds the decisions that were made on a full device to the report.
    fn count_decisions(&mut self, device: usize) {
        let ClusterReport { launches: Some(launches), memory: Some(memory), evictions, .. } = &mut self.report else {
            return;
        };
        if let Some(state) = self.devices[device].as_mut().and_then(Device::full) {
            let (counters, of_memory) = state.reports();
            launches.add(counters);
            memory.add(of_memory);
            *evictions += of_memory.evictions as usize;
        }
    }

    /// Starts requests that wait on a plain device for memory, while there is room.
    fn unblock(&mut self, now: u64, device: usize) {
        while let Some(request) = self.devices[device].as_mut().and_then(Device::plain).and_then(PlainDevice::unblock) {
            if !self.run(now, request, device) {
                break;
            }
        }
    }

    fn fault(&mut self, now: u64, fault: ClusterFault) {
        let (index, device) = (fault.device, DeviceId(fault.device as u16));
        match fault.kind {
            FaultKind::Lost if self.devices[index].is_some() => {
                self.count_decisions(index);
                self.devices[index] = None;
                self.lives[index] += 1;
                self.note(now, PoolEvent::DeviceLost { device });
            }
            FaultKind::Back if self.devices[index].is_none() => self.add_device(now, index),
            FaultKind::Drained => self.note(now, PoolEvent::DeviceDraining { device }),
            FaultKind::Resumed => self.note(now, PoolEvent::DeviceResumed { device }),
            FaultKind::Lost | FaultKind::Back => {}
        }
    }
}
