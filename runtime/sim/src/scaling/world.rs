//! The run: arrivals and decisions in the order of their times.

use super::oracle::{self, Foreseen};
use super::report::{FunctionScaling, Sample, ScalingReport};
use super::{Controller, Scaled, ScaledFunction};
use atoll_core::Nanos;
use atoll_core::packing::InstanceId;
use atoll_core::scaling::{
    Autoscaler, Change, Constants, Demand, Instance, Need, Observed, Placed, Point, Predictor, Profile, Relocation,
    Spot, Stay, assign, consolidate, resized,
};
use atoll_core::tokens::{ShareRequest, ShareSpec};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

/// The number of the instance that is to be placed.
const NEW: InstanceId = InstanceId(u64::MAX);

/// Runs the functions of a cluster. The same setup gives the same report.
pub fn simulate_scaling(setup: &Scaled) -> ScalingReport {
    let mut world = World::new(setup);
    let mut arrivals: Vec<(u64, usize)> = Vec::new();
    for (at, function) in setup.functions.iter().enumerate() {
        arrivals.extend(function.arrivals.iter().map(|time| (*time, at)));
    }
    arrivals.sort_unstable();
    let mut next = arrivals.into_iter().peekable();
    loop {
        let due = world.due();
        match next.next_if(|(at, _)| due.is_none_or(|(tick, _)| *at < tick) && *at < setup.end_ns) {
            Some((at, function)) => world.arrive(at, function),
            None => match due.filter(|(at, _)| *at <= setup.end_ns) {
                Some((at, function)) => world.tick(at, function),
                None => return world.end(),
            },
        }
    }
}

/// An instance.
#[derive(Clone, Debug)]
struct Server {
    id: u64,
    function: usize,
    point: Point,
    device: usize,
    /// When it has started.
    ready_at: u64,
    /// When it can begin with another request.
    free_at: u64,
    /// When each of its requests ends, and whether that is late.
    ends: VecDeque<(u64, bool)>,
    is_draining: bool,
    /// Whether it drains because it moved or was replaced.
    has_successor: bool,
}

impl Server {
    /// When it can be removed, if it gets no more requests. A request may end before its service
    /// time on the instance is over.
    fn leaves_at(&self) -> u64 {
        self.ends.back().map_or(0, |(ends, _)| *ends).max(self.free_at)
    }
}

/// From one request of an instance to the next, in nanoseconds.
pub(super) fn service_ns(point: &Point) -> u64 {
    1_000_000_000_000 / point.throughput.max(1)
}

/// A function in the run.
struct Function<'a> {
    setup: &'a ScaledFunction,
    autoscaler: Autoscaler,
    demand: Demand,
    /// The point of the oracle's instances.
    foreseen_point: Point,
    observed: Observed,
    /// The next request that the oracle has not looked at.
    foreseen: usize,
    /// Arrivals of requests that have no instance.
    waiting: VecDeque<u64>,
    /// Whether a new instance waits until others have moved.
    awaits_room: bool,
    due: u64,
    report: FunctionScaling,
}

struct World<'a> {
    setup: &'a Scaled,
    functions: Vec<Function<'a>>,
    servers: Vec<Server>,
    next: u64,
    now: u64,
    report: ScalingReport,
    /// Arrivals since the last sample.
    arrived: u64,
    /// Whether instances were removed since moves that free a device were last looked for.
    may_free: bool,
}

/// The share of an instance at a point.
fn share(point: &Point) -> ShareSpec {
    let quota = f64::from(point.quota) / 100.0;
    let request =
        ShareRequest { sm_partition: point.partition.into(), quota_request: quota, quota_limit: quota, group: 0 };
    ShareSpec::new(&request).expect("the points of a profile have from 1 to 100 %")
}

impl<'a> World<'a> {
    fn new(setup: &'a Scaled) -> World<'a> {
        let foreseen_point = |function: &ScaledFunction| match setup.controller {
            Controller::Oracle => oracle::cheapest(function, setup.end_ns),
            Controller::Autoscaler => function.profile.points()[0],
        };
        let function = |setup: &'a ScaledFunction| Function {
            demand: Demand::new(&setup.config, &setup.profile),
            foreseen_point: foreseen_point(setup),
            autoscaler: Autoscaler::new(setup.config, Predictor::new()),
            observed: Observed::default(),
            foreseen: 0,
            waiting: VecDeque::new(),
            awaits_room: false,
            due: 0,
            report: FunctionScaling { name: setup.name.clone(), ..FunctionScaling::default() },
            setup,
        };
        let functions = setup.functions.iter().map(function).collect();
        let report = ScalingReport::default();
        World { setup, functions, servers: Vec::new(), next: 0, now: 0, report, arrived: 0, may_free: false }
    }

    /// The next decision: its time and its function.
    fn due(&self) -> Option<(u64, usize)> {
        self.functions.iter().enumerate().map(|(at, function)| (function.due, at)).min()
    }

    /// Time passes.
    fn advance(&mut self, now: u64) {
        let since = self.now;
        let now = now.max(since);
        let seconds = (now - since) as f64 / 1e9;
        self.now = now;
        let (mut devices, mut promised) = (BTreeSet::new(), vec![0; self.setup.hosts.len()]);
        for server in &self.servers {
            // An instance that drains keeps its share until its last request has ended and its
            // service time is over.
            let until = if server.is_draining { server.leaves_at() } else { now };
            let part = until.clamp(since, now).saturating_sub(since) as f64 / 1e9;
            // An area is in ten-thousandths of a device.
            self.report.promised_device_s += server.point.area() as f64 / 1e4 * part;
            devices.insert(server.device);
            promised[server.device] += if part > 0.0 { server.point.area() } else { 0 };
        }
        let fullest = promised.into_iter().max().unwrap_or(0) as f64 / 1e4;
        self.report.fullest = self.report.fullest.max(fullest);
        self.report.used_device_s += devices.len() as f64 * seconds;
        self.report.devices_max = self.report.devices_max.max(devices.len() as u64);
    }

    fn arrive(&mut self, now: u64, function: usize) {
        self.advance(now);
        self.arrived += 1;
        let of = &mut self.functions[function];
        of.observed.arrivals += 1;
        of.report.requests += 1;
        if self.setup.controller == Controller::Autoscaler {
            of.demand.arrive(Nanos(now));
            self.add_another(function);
        }
        if !self.serve(function, now) {
            self.functions[function].waiting.push_back(now);
            self.start_first(function);
        }
    }

    /// Adds an instance for the request that has just arrived, if recent requests and this one need
    /// one more than there are.
    fn add_another(&mut self, function: usize) {
        let running = self.running(function);
        let of = &mut self.functions[function];
        let Some(needed) = of.demand.needed(Nanos(self.now)).filter(|_| !running.is_empty()) else { return };
        let capacity = running.iter().map(|instance| instance.point.throughput).sum();
        if !of.awaits_room
            && let Some(point) = of.autoscaler.another(&needed, running.len(), capacity)
        {
            self.create(function, point, self.setup.start_ns);
        }
    }

    /// Gives a request to the instance that finishes it first. `false` if there is none.
    fn serve(&mut self, function: usize, arrived: u64) -> bool {
        let now = self.now;
        let candidates = self.servers.iter_mut().filter(|server| server.function == function && !server.is_draining);
        let begin = |server: &Server| server.free_at.max(server.ready_at).max(now);
        let finish = |server: &Server| begin(server) + server.point.latency_ns;
        let Some(server) = candidates.min_by_key(|server| (finish(server), server.id)) else { return false };
        let ends = finish(server);
        server.free_at = begin(server) + service_ns(&server.point);
        let latency_ns = ends - arrived;
        let of = &mut self.functions[function];
        let is_late = latency_ns > of.setup.config.slo_ns;
        server.ends.push_back((ends, is_late));
        of.report.misses += u64::from(is_late);
        of.report.latencies_ns.push(latency_ns);
        true
    }

    /// Starts the first instance of a function for the requests that wait for one.
    fn start_first(&mut self, function: usize) {
        let setup = self.functions[function].setup;
        let unmeasured = setup.profile.points()[0];
        let of = &mut self.functions[function];
        let needed = of.demand.needed(Nanos(self.now)).filter(|_| setup.config.headroom_percent.is_none());
        let first = of.autoscaler.first(Some(&setup.profile), unmeasured);
        let point = needed.map_or_else(|| first.unwrap_or_else(|_| fastest(&setup.profile)), |needed| needed.point);
        if self.create(function, point, self.setup.start_ns) {
            self.serve_waiting(function);
        }
    }

    fn serve_waiting(&mut self, function: usize) {
        while let Some(arrived) = self.functions[function].waiting.pop_front() {
            if !self.serve(function, arrived) {
                self.functions[function].waiting.push_front(arrived);
                return;
            }
            let report = &mut self.functions[function].report;
            let latency_ns = report.latencies_ns.last().copied();
            report.from_zero_ns = report.from_zero_ns.max(latency_ns);
        }
    }

    /// Decides for a function.
    fn tick(&mut self, now: u64, function: usize) {
        self.advance(now);
        self.settle();
        self.functions[function].due = now + self.functions[function].setup.config.interval_ns.max(1);
        match self.setup.controller {
            Controller::Autoscaler => self.scale(function),
            Controller::Oracle => self.foresee(function),
        }
        self.serve_waiting(function);
        self.settle();
        if self.due().is_some_and(|(due, _)| due > now) {
            self.sample();
        }
    }

    /// Counts requests that have ended, and removes instances that have drained.
    fn settle(&mut self) {
        let now = self.now;
        for server in &mut self.servers {
            let observed = &mut self.functions[server.function].observed;
            while let Some(&(_, is_late)) = server.ends.front().filter(|(ends, _)| *ends <= now) {
                server.ends.pop_front();
                observed.ended += 1;
                observed.late += u64::from(is_late);
            }
        }
        let before = self.servers.len();
        self.servers.retain(|server| !server.is_draining || server.leaves_at() > now);
        self.may_free |= self.servers.len() < before && self.setup.controller == Controller::Autoscaler;
        let waits = self.functions.iter().any(|function| function.awaits_room);
        if self.may_free && !waits && self.servers.iter().all(|server| !server.is_draining) {
            self.may_free = false;
            let pay_ns = self.functions.iter().map(|function| function.setup.config.cool_down_ns).min().unwrap_or(0);
            let moves = consolidate(&self.setup.hosts, &self.placed(), waits, pay_ns);
            self.relocate(&moves);
        }
    }

    fn running(&self, function: usize) -> Vec<Instance> {
        let own = self.servers.iter().filter(|server| server.function == function && !server.is_draining);
        own.map(|server| Instance { id: InstanceId(server.id), point: server.point }).collect()
    }

    fn scale(&mut self, function: usize) {
        let running = self.running(function);
        let own = self.servers.iter().filter(|server| server.function == function && !server.is_draining);
        let beyond: u64 = own.map(|server| (server.ends.len() as u64).saturating_sub(1)).sum();
        let of = &mut self.functions[function];
        of.awaits_room = false;
        let mut observed = std::mem::take(&mut of.observed);
        observed.queued = of.waiting.len() as u64 + beyond;
        observed.needed = of.demand.needed(Nanos(self.now));
        let (profile, unmeasured) = (&of.setup.profile, of.setup.profile.points()[0]);
        let decided = of.autoscaler.step(Nanos(self.now), &observed, Some(profile), unmeasured, &running);
        if let Ok(decision) = decided {
            self.apply(function, &decision.change, self.setup.start_ns);
        }
    }

    fn apply(&mut self, function: usize, change: &Change, start_ns: u64) {
        for id in &change.remove {
            self.drain(id.0, false);
            self.functions[function].report.removed += 1;
        }
        for (id, point) in &change.resize {
            self.resize(id.0, *point, start_ns);
        }
        let mut add = change.add.clone();
        add.sort_by_key(|point| Reverse(point.area()));
        for point in add {
            if !self.create(function, point, start_ns) {
                break;
            }
        }
    }

    fn drain(&mut self, id: u64, has_successor: bool) {
        if let Some(server) = self.servers.iter_mut().find(|server| server.id == id) {
            (server.is_draining, server.has_successor) = (true, has_successor);
        }
    }

    /// An instance gets another point on its device, or, without room, a successor on another one.
    fn resize(&mut self, id: u64, point: Point, start_ns: u64) {
        let Some(at) = self.servers.iter().position(|server| server.id == id) else { return };
        let function = self.servers[at].function;
        match resized(&self.setup.hosts, &self.placed(), InstanceId(id), share(&point)) {
            Spot::Now { .. } => self.servers[at].point = point,
            // Leaving instances still have the room; a later decision tries again.
            Spot::Later { .. } => self.functions[function].awaits_room = true,
            Spot::Nowhere(_) => {
                if self.create(function, point, start_ns) {
                    self.drain(id, true);
                }
            }
        }
    }

    fn need(&self, function: usize, point: &Point) -> Need {
        let bytes = self.functions[function].setup.constant_bytes;
        let constants = Constants { function: function as u32, bytes };
        Need { share: share(point), bytes: 0, constants, devices: u64::MAX }
    }

    fn placed(&self) -> Vec<Placed> {
        let placed = |server: &Server| {
            let drain_ns = server.ends.len() as u64 * service_ns(&server.point);
            let stay = if server.is_draining { Stay::Leaving } else { Stay::Movable { drain_ns } };
            let need = self.need(server.function, &server.point);
            Placed { id: InstanceId(server.id), need, device: server.device, stay }
        };
        // The oracle does not wait until instances have left.
        let counts = |server: &&Server| !server.is_draining || self.setup.controller == Controller::Autoscaler;
        self.servers.iter().filter(counts).map(placed).collect()
    }

    /// Lets an instance of the function with this point that is draining take requests again, as
    /// the daemon does. Returns whether there was one.
    fn take_back(&mut self, function: usize, point: &Point) -> bool {
        let is_like = |server: &&mut Server| {
            server.function == function && server.is_draining && !server.has_successor && server.point == *point
        };
        let found = self.servers.iter_mut().filter(is_like).min_by_key(|server| (server.free_at, server.id));
        found.map(|server| server.is_draining = false).is_some()
    }

    /// Creates an instance where there is room; others may begin to move for it. Says whether it
    /// did.
    fn create(&mut self, function: usize, point: Point, start_ns: u64) -> bool {
        if self.setup.controller == Controller::Autoscaler && self.take_back(function, &point) {
            self.functions[function].report.created += 1;
            return true;
        }
        let (need, pay_ns) = (self.need(function, &point), self.functions[function].setup.config.cool_down_ns);
        let found = assign(&self.setup.hosts, &self.placed(), &[(NEW, need)], pay_ns);
        self.relocate(&found.moves);
        self.functions[function].awaits_room = matches!(found.spots[..], [(_, Spot::Later { .. })]);
        match found.spots[..] {
            [(_, Spot::Now { device, .. })] => {
                self.functions[function].report.created += 1;
                self.add(function, point, device, start_ns);
                true
            }
            [(_, Spot::Later { .. })] => false,
            _ => {
                self.report.refused += 1;
                false
            }
        }
    }

    fn add(&mut self, function: usize, point: Point, device: usize, start_ns: u64) {
        let (id, ready_at) = (self.next, self.now + start_ns);
        self.next += 1;
        let (free_at, ends) = (self.now, VecDeque::new());
        let (is_draining, has_successor) = (false, false);
        self.servers.push(Server { id, function, point, device, ready_at, free_at, ends, is_draining, has_successor });
    }

    fn relocate(&mut self, moves: &[Relocation]) {
        for relocation in moves {
            let of = self.servers.iter().find(|server| server.id == relocation.instance.0);
            let Some((function, point)) = of.map(|server| (server.function, server.point)) else { continue };
            self.add(function, point, relocation.to, self.setup.start_ns);
            self.drain(relocation.instance.0, true);
            self.report.moves += 1;
            self.report.move_cost_device_s += relocation.cost_ns as f64 / 1e9;
        }
    }

    /// The oracle has the fewest instances of its point that serve all requests of the next
    /// interval in time, and no others.
    fn foresee(&mut self, function: usize) {
        let own = self.servers.iter().filter(|server| server.function == function && !server.is_draining);
        let have: Vec<Foreseen> = own.map(|server| Foreseen { free_at: server.free_at, id: Some(server.id) }).collect();
        let of = &mut self.functions[function];
        let rest = &of.setup.arrivals[of.foreseen..];
        let arrivals = &rest[..rest.partition_point(|at| *at < of.due)];
        of.foreseen += arrivals.len();
        let point = of.foreseen_point;
        let (needed, spare) = oracle::needed(have, arrivals, &point, of.setup.config.slo_ns);
        let add = vec![point; needed.iter().filter(|foreseen| foreseen.id.is_none()).count()];
        let remove = spare.iter().filter_map(|foreseen| foreseen.id.map(InstanceId)).collect();
        self.apply(function, &Change { add, remove, ..Change::default() }, 0);
    }

    fn sample(&mut self) {
        let takes: Vec<&Server> = self.servers.iter().filter(|server| !server.is_draining).collect();
        let since = self.report.samples.last().map_or(0, |sample| sample.at_ns);
        let seconds = (self.now.saturating_sub(since) as f64 / 1e9).max(1e-9);
        let sample = Sample {
            at_ns: self.now,
            rate: if self.now > since { self.arrived as f64 / seconds } else { 0.0 },
            capacity: takes.iter().map(|server| server.point.throughput).sum::<u64>() as f64 / 1e3,
            instances: takes.len() as u64,
            devices: takes.iter().map(|server| server.device).collect::<BTreeSet<usize>>().len() as u64,
        };
        self.arrived = 0;
        self.report.samples.push(sample);
    }

    fn end(mut self) -> ScalingReport {
        self.advance(self.setup.end_ns);
        for function in &mut self.functions {
            function.report.unserved = function.waiting.len() as u64;
            function.report.misses += function.report.unserved;
            function.report.latencies_ns.sort_unstable();
        }
        let functions = self.functions.into_iter().map(|function| function.report).collect();
        ScalingReport { functions, ..self.report }
    }
}

pub(super) fn fastest(profile: &Profile) -> Point {
    let points = profile.points().iter();
    points.min_by_key(|point| point.latency_ns).copied().expect("a profile has a point")
}
