//! The full model of a device: the daemon's launch scheduler and memory decisions in front of a
//! simulated device.

use super::memory::DeviceMemory;
use super::report::MemoryReport;
use super::setup::{ClusterDevice, ClusterFunction, NodeSetup};
use crate::device::SimDevice;
use crate::model::Kernel;
use crate::node::{Kernels, Node};
use atoll_core::memory::{Action as MemoryAction, Event as MemoryEvent, FunctionId};
use atoll_core::residency::ResidencyPolicyEntry;
use atoll_core::{Action, ClientId, Counters, Event, LaneId, LaunchProfile, Nanos, Outcome, Step, TaskId, TaskSpec};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The launches of a request.
#[derive(Clone)]
pub(super) struct Plan {
    kernels: Kernels,
    steps: Arc<[Step]>,
    profiles: Arc<[Option<LaunchProfile>]>,
}

impl Plan {
    /// The equal launches of a function on a device. Together their blocks take the function's
    /// service time, rounded to whole nanoseconds for each round of blocks.
    pub(super) fn of(setup: &NodeSetup, function: &ClusterFunction, device: &ClusterDevice) -> Plan {
        let rounds = u64::from(setup.launches) * u64::from(setup.blocks.div_ceil(setup.device.compute_units));
        let wave_ns = (device.service_ns(function) as f64 / rounds as f64).round().max(1.0) as u64;
        let profile = LaunchProfile::new(setup.blocks, [wave_ns]);
        let kernel = Arc::new(Kernel { name: function.name.clone(), profile: profile.clone() });
        let launches = setup.launches as usize;
        Plan {
            kernels: vec![kernel; launches].into(),
            steps: vec![Step::Preemptible; launches].into(),
            profiles: vec![Some(profile); launches].into(),
        }
    }
}

/// A request that ended on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) request: usize,
    pub(super) outcome: Outcome,
    /// Time from when its launches could be issued until its end. Loading constants is not included.
    pub(super) service: Nanos,
    /// Whether the device did not hold its constants when it arrived.
    pub(super) cold: bool,
}

/// A device with the daemon's decisions, and the requests on it.
pub(super) struct FullDevice {
    node: Node,
    memory: DeviceMemory,
    /// Actions of the launch scheduler that were not carried out yet.
    actions: VecDeque<Action>,
    requests: BTreeMap<TaskId, Request>,
    /// The task of the request that is being admitted.
    arriving: Option<TaskSpec>,
    over: Vec<Over>,
    /// The earliest wake-up that is scheduled for this device.
    wakes_at: Option<u64>,
}

/// A request on the device.
struct Request {
    /// When it was assigned a device queue; before that, when it arrived.
    began: Nanos,
    cold: bool,
}

impl FullDevice {
    pub(super) fn new(spec: &ClusterDevice, setup: &NodeSetup, residency: &ResidencyPolicyEntry) -> FullDevice {
        FullDevice {
            node: Node::new(setup.policy, SimDevice::new(&setup.device), setup.queue_capacity),
            memory: DeviceMemory::new(spec, &setup.memory, residency),
            actions: VecDeque::new(),
            requests: BTreeMap::new(),
            arriving: None,
            over: Vec::new(),
            wakes_at: None,
        }
    }

    /// A request arrives on the device. Returns whether the device does not hold its constants. A
    /// request that can never run here ends at once.
    pub(super) fn start(
        &mut self,
        now: u64,
        request: usize,
        index: usize,
        function: &ClusterFunction,
        plan: &Plan,
    ) -> bool {
        self.advance(now);
        let (now, task, cold) = (Nanos(now), TaskId(request as u64), !self.memory.holds(index));
        self.requests.insert(task, Request { began: now, cold });
        let spec = TaskSpec {
            task,
            lane: LaneId::DEFAULT,
            client: ClientId(index as u32),
            class: function.class,
            priority: 0,
            steps: Arc::clone(&plan.steps),
            deadline: None,
            due: None,
            profiles: Some(Arc::clone(&plan.profiles)),
            forks: None,
            ready: false,
        };
        self.node.add(&spec, Arc::clone(&plan.kernels));
        self.arriving = Some(spec);
        if !self.memory.arrive(now, task, index, function) {
            self.carry_out(now, Action::FinishTask { task, outcome: Outcome::Refused, preemptions: 0 });
        }
        self.settle(now);
        cold
    }

    /// Loads a function ahead of requests, if there is free memory.
    pub(super) fn preload(&mut self, now: u64, index: usize, function: &ClusterFunction) {
        self.advance(now);
        self.memory.preload(Nanos(now), index, function);
        self.settle(Nanos(now));
    }

    /// Evicts a function, if no request needs it.
    pub(super) fn unload(&mut self, now: u64, index: usize) {
        self.advance(now);
        self.memory.handle(Nanos(now), MemoryEvent::Reclaim { function: FunctionId(index as u64) });
        self.settle(Nanos(now));
    }

    /// Whether the constants of a function are here, or being loaded.
    pub(super) fn holds(&self, index: usize) -> bool {
        self.memory.holds(index)
    }

    /// Handles everything that happens on the device until `now`.
    pub(super) fn advance(&mut self, now: u64) {
        if self.wakes_at.is_some_and(|at| at <= now) {
            self.wakes_at = None;
        }
        let now = Nanos(now);
        let mut ended = Vec::new();
        self.node.device.advance(now, &mut ended);
        for ended in ended {
            self.node.ended(&ended);
            self.tell(now, Event::LaunchEnded { launch: ended.launch, end: ended.end });
            self.settle(now);
        }
        if self.node.scheduler.next_wakeup().is_some_and(|at| at <= now) {
            self.tell(now, Event::Tick);
        }
        self.memory.advance(now);
        self.settle(now);
    }

    fn tell(&mut self, now: Nanos, event: Event) {
        let mut actions = Vec::new();
        self.node.scheduler.handle(now, event, &mut actions);
        self.actions.extend(actions);
    }

    /// Carries out all actions, including those that they cause. Those of memory decisions come
    /// first, since they may withdraw actions of the launch scheduler.
    fn settle(&mut self, now: Nanos) {
        loop {
            if let Some(effect) = self.memory.next_effect() {
                self.follow(now, &effect);
            } else if let Some(action) = self.actions.pop_front() {
                self.carry_out(now, action);
            } else if !self.memory.copy_next(now) {
                return;
            }
        }
    }

    /// Tells the launch scheduler what the memory decided.
    fn follow(&mut self, now: Nanos, effect: &MemoryAction) {
        match *effect {
            MemoryAction::Admitted { ready, .. } => {
                let spec = self.arriving.take().expect("a request is admitted when it arrives");
                self.tell(now, Event::TaskArrived(TaskSpec { ready, ..spec }));
            }
            MemoryAction::Ready { task } => self.tell(now, Event::TaskReady { task }),
            MemoryAction::Unready { task } => {
                // A pending `Prepare` of it is obsolete.
                self.actions.retain(|action| *action != Action::Prepare { task });
                self.tell(now, Event::TaskUnready { task });
            }
            MemoryAction::Begin { task } => self.tell(now, Event::TaskPrepared { task }),
            _ => {}
        }
    }

    fn carry_out(&mut self, now: Nanos, action: Action) {
        self.node.carry_out(now, &action);
        match action {
            Action::Prepare { task } => {
                self.requests.get_mut(&task).expect("a request is prepared before its end").began = now;
                self.memory.handle(now, MemoryEvent::Prepare { task });
            }
            Action::FinishTask { task, outcome, .. } => {
                let Request { began, cold } = self.requests.remove(&task).expect("a request ends once");
                self.over.push(Over { request: task.0 as usize, outcome, service: Nanos(now.0 - began.0), cold });
                // A request that the memory refused never arrived there.
                if self.arriving.take().is_none() {
                    self.memory.end(now, task);
                }
            }
            _ => {}
        }
    }

    /// The requests that ended since the last call.
    pub(super) fn take_over(&mut self) -> Vec<Over> {
        std::mem::take(&mut self.over)
    }

    /// Functions whose constants came or left since the last call, in order, and whether they are
    /// held now.
    pub(super) fn take_changes(&mut self) -> Vec<(usize, bool)> {
        self.memory.take_changes()
    }

    /// A wake-up that the world has to schedule; `None` if an earlier one, or none, is enough.
    pub(super) fn wake_at(&mut self, now: u64) -> Option<u64> {
        let next = self.node.next().into_iter().chain(self.memory.next()).min()?.0.max(now);
        if self.wakes_at.is_some_and(|at| at <= next) {
            return None;
        }
        self.wakes_at = Some(next);
        self.wakes_at
    }

    /// What the launch scheduler and the memory did until now.
    pub(super) fn reports(&self) -> (Counters, MemoryReport) {
        (self.node.scheduler.counters(), self.memory.report())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::setup::MemorySetup;
    use crate::parameters::device_by_name;
    use atoll_core::placement::{DeviceKind, GroupId, Suits};
    use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
    use atoll_core::{Class, policy_by_name};

    const KIB: u64 = 1 << 10;

    fn setup(policy: &str, launches: u32, blocks: u32) -> NodeSetup {
        let device = *device_by_name("v100").expect("a device of the table");
        let policy = policy_by_name(policy).expect("a policy");
        let memory = MemorySetup { request_bytes: 256, quota_bytes: None };
        NodeSetup { policy, device, queue_capacity: 4, launches, blocks, memory }
    }

    /// A function with 4 KiB of constants.
    fn function(service_ns: u64, class: Class) -> ClusterFunction {
        ClusterFunction {
            name: "f".into(),
            group: GroupId(0),
            class,
            service_ns,
            reload_ns: 0,
            constant_bytes: 4 * KIB,
            suits: Suits::All,
        }
    }

    fn spec(memory_bytes: u64, speed: f64) -> ClusterDevice {
        ClusterDevice { kind: DeviceKind(0), slots: 2, memory_bytes, speed }
    }

    fn plan(setup: &NodeSetup, service_ns: u64, speed: f64) -> Plan {
        Plan::of(setup, &function(service_ns, Class::BestEffort), &spec(0, speed))
    }

    /// A device with memory for this many functions.
    fn device(setup: &NodeSetup, functions: u64) -> FullDevice {
        let residency = residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("a policy of the table");
        FullDevice::new(&spec(functions * 4 * KIB, 1.0), setup, residency)
    }

    /// Runs a device until nothing is left to do, as the world does.
    fn run(device: &mut FullDevice, mut now: u64) -> Vec<(u64, Over)> {
        let mut over = Vec::new();
        loop {
            over.extend(device.take_over().into_iter().map(|over| (now, over)));
            match device.wake_at(now) {
                Some(at) => now = at,
                None => return over,
            }
            device.advance(now);
        }
    }

    fn requests(over: &[(u64, Over)]) -> Vec<usize> {
        over.iter().map(|(_, over)| over.request).collect()
    }

    #[test]
    fn the_blocks_of_a_plan_take_the_service_time() {
        for (launches, blocks, speed) in [(1, 1, 1.0), (8, 320, 1.0), (3, 100, 2.0), (7, 81, 0.5)] {
            let setup = setup("reset", launches, blocks);
            let plan = plan(&setup, 2_000_000, speed);
            assert_eq!(plan.kernels.len(), launches as usize);
            let alone: u64 = plan.kernels.iter().map(|kernel| kernel.profile.alone_ns(80)).sum();
            let expected = (2e6 / speed) as u64;
            let rounds = u64::from(launches * blocks.div_ceil(80));
            assert!(alone.abs_diff(expected) <= rounds, "{alone} ns of {launches} × {blocks}");
        }
        let shortest = plan(&setup("reset", 8, 320), 1, 1.0);
        assert_eq!(shortest.kernels[0].profile.wave_ns[..], [1], "a block takes time");
    }

    #[test]
    fn a_request_alone_takes_its_service_time_and_the_latencies_of_one_launch() {
        let setup = setup("reset", 8, 320);
        let mut device = device(&setup, 1);
        let (function, plan) = (function(3_200_000, Class::BestEffort), plan(&setup, 3_200_000, 1.0));
        // The launch latencies of the others are hidden behind their predecessors.
        let service = 3_200_000 + setup.device.costs.launch_ns + setup.device.costs.completion_ns;
        for (request, at, cold) in [(7, 1_000, true), (8, 9_000_000, false)] {
            assert_eq!(device.start(at, request, 0, &function, &plan), cold);
            let over = Over { request, outcome: Outcome::Complete, service: Nanos(service), cold };
            assert_eq!(run(&mut device, at), [(at + service, over)]);
        }
        let (launches, memory) = device.reports();
        assert_eq!((launches.issued_launches, launches.preemptions), (16, 0));
        assert_eq!((memory.loads, memory.held_bytes), (1, 4 * KIB));
    }

    #[test]
    fn a_request_waits_for_its_constants_and_no_other_request_waits_for_it() {
        let setup = setup("reset", 2, 80);
        let plan = plan(&setup, 1_000_000, 1.0);
        let quick = function(1_000_000, Class::BestEffort);
        let slow = ClusterFunction { reload_ns: 5_000_000, ..quick.clone() };
        let mut device = device(&setup, 2);
        device.preload(0, 1, &quick);
        assert!(device.start(0, 0, 0, &slow, &plan) && !device.start(0, 1, 1, &quick, &plan));
        assert_eq!(device.take_changes(), [(1, true), (0, true)]);
        let over = run(&mut device, 0);
        assert_eq!(requests(&over), [1, 0]);
        assert_eq!(over[1].1.service, over[0].1.service, "the load is not part of the service time");
        assert_eq!(over[1].0 - over[0].0, 5_000_000, "it begins when its constants are there");
    }

    #[test]
    fn a_request_without_room_for_its_constants_waits_until_those_in_use_can_be_evicted() {
        let setup = setup("reset", 2, 80);
        let plan = plan(&setup, 1_000_000, 1.0);
        let function = function(1_000_000, Class::BestEffort);
        let mut device = device(&setup, 1);
        assert!(device.start(0, 0, 0, &function, &plan) && device.start(0, 1, 1, &function, &plan));
        assert_eq!(device.take_changes(), [(0, true)], "there is room for one of them");
        let over = run(&mut device, 0);
        assert_eq!(requests(&over), [0, 1]);
        assert!(over[1].0 >= 2 * over[0].1.service.0, "one after the other");
        assert_eq!(device.take_changes(), [(0, false), (1, true)]);
        device.unload(9_000_000, 1);
        assert_eq!(device.take_changes(), [(1, false)]);
        let (_, memory) = device.reports();
        assert_eq!((memory.loads, memory.evictions, memory.held_bytes), (2, 2, 0));
        assert_eq!(memory.used_bytes_max, 4 * KIB + 256);
    }

    #[test]
    fn a_real_time_request_preempts_under_policies_that_do() {
        let ends = |policy: &str| {
            let setup = setup(policy, 10, 800);
            let mut device = device(&setup, 2);
            let (long, short) = (plan(&setup, 10_000_000, 1.0), plan(&setup, 1_000_000, 1.0));
            device.start(0, 0, 0, &function(10_000_000, Class::BestEffort), &long);
            while device.wake_at(0).is_some_and(|at| at <= 5_000_000) {
                let at = device.wakes_at.expect("it was set");
                device.advance(at);
            }
            device.wakes_at = None;
            device.start(5_000_000, 1, 1, &function(1_000_000, Class::RealTime), &short);
            let mut over = run(&mut device, 5_000_000);
            over.sort_by_key(|(_, over)| over.request);
            (over[0].0, over[1].0, device.reports().0.preemptions)
        };
        // A block takes 100 µs; costs are below 50 µs.
        let (best_effort, real_time, preemptions) = ends("reset");
        assert!((6_000_000..6_150_000).contains(&real_time), "{real_time}");
        assert!((11_000_000..11_300_000).contains(&best_effort), "{best_effort}");
        assert_eq!(preemptions, 1);
        let (best_effort, real_time, preemptions) = ends("sequential");
        assert!(real_time > best_effort && preemptions == 0, "{real_time} after {best_effort}");
    }

    #[test]
    fn a_request_that_the_policy_or_the_memory_refuses_is_over_at_once() {
        let refused = |policy: &str, functions| {
            let setup = setup(policy, 2, 80);
            let mut device = device(&setup, functions);
            device.start(10, 3, 0, &function(1_000, Class::BestEffort), &plan(&setup, 1_000, 1.0));
            let over: Vec<_> = device.take_over().iter().map(|over| (over.request, over.outcome)).collect();
            assert_eq!(over, [(3, Outcome::Refused)]);
            assert!(run(&mut device, 10).is_empty());
            device.holds(0)
        };
        refused("rt-only", 1);
        assert!(!refused("reset", 0), "it does not fit");
    }
}
