//! The launches of a simulated device: the daemon's launch scheduler in front of a simulated device.

use super::{ClusterDevice, ClusterFunction, NodeSetup};
use crate::device::SimDevice;
use crate::model::Kernel;
use crate::node::{Kernels, Node};
use atoll_core::{
    Action, Class, ClientId, Counters, Event, LaneId, LaunchProfile, Nanos, Outcome, Step, TaskId, TaskSpec,
};
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
}

/// The launch scheduler of a device, the device, and the requests on it.
pub(super) struct Launches {
    node: Node,
    /// When each request was assigned a device queue; before that, when it arrived.
    began: BTreeMap<TaskId, Nanos>,
    over: Vec<Over>,
    /// The earliest wake-up that is scheduled for this device.
    wakes_at: Option<u64>,
}

impl Launches {
    pub(super) fn new(setup: &NodeSetup) -> Launches {
        Launches {
            node: Node::new(setup.policy, SimDevice::new(&setup.device), setup.queue_capacity),
            began: BTreeMap::new(),
            over: Vec::new(),
            wakes_at: None,
        }
    }

    /// A request arrives on the device. If it is not ready, [`Launches::ready`] follows.
    pub(super) fn start(&mut self, now: u64, request: usize, function: usize, class: Class, plan: &Plan, ready: bool) {
        self.advance(now);
        let task = TaskId(request as u64);
        self.began.insert(task, Nanos(now));
        let spec = TaskSpec {
            task,
            lane: LaneId::DEFAULT,
            client: ClientId(function as u32),
            class,
            priority: 0,
            steps: Arc::clone(&plan.steps),
            deadline: None,
            due: None,
            profiles: Some(Arc::clone(&plan.profiles)),
            forks: None,
            ready,
        };
        self.node.add(&spec, Arc::clone(&plan.kernels));
        self.tell(now, Event::TaskArrived(spec));
    }

    /// The constants of a request were loaded.
    pub(super) fn ready(&mut self, now: u64, request: usize) {
        self.advance(now);
        self.tell(now, Event::TaskReady { task: TaskId(request as u64) });
    }

    /// Handles everything that happens on the device until `now`.
    pub(super) fn advance(&mut self, now: u64) {
        if self.wakes_at.is_some_and(|at| at <= now) {
            self.wakes_at = None;
        }
        let mut ended = Vec::new();
        self.node.device.advance(Nanos(now), &mut ended);
        for ended in ended {
            self.node.ended(&ended);
            self.tell(now, Event::LaunchEnded { launch: ended.launch, end: ended.end });
        }
        if self.node.scheduler.next_wakeup().is_some_and(|at| at.0 <= now) {
            self.tell(now, Event::Tick);
        }
    }

    fn tell(&mut self, now: u64, event: Event) {
        let now = Nanos(now);
        let mut actions = Vec::new();
        self.node.scheduler.handle(now, event, &mut actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            self.node.carry_out(now, &action);
            match action {
                Action::Prepare { task } => {
                    self.began.insert(task, now);
                    let mut more = Vec::new();
                    self.node.scheduler.handle(now, Event::TaskPrepared { task }, &mut more);
                    actions.extend(more);
                }
                Action::FinishTask { task, outcome, .. } => {
                    let began = self.began.remove(&task).expect("a request ends once");
                    self.over.push(Over { request: task.0 as usize, outcome, service: Nanos(now.0 - began.0) });
                }
                _ => {}
            }
        }
    }

    /// The requests that ended since the last call.
    pub(super) fn take_over(&mut self) -> Vec<Over> {
        std::mem::take(&mut self.over)
    }

    /// A wake-up that the world has to schedule; `None` if an earlier one, or none, is enough.
    pub(super) fn wake_at(&mut self, now: u64) -> Option<u64> {
        let next = self.node.next()?.0.max(now);
        if self.wakes_at.is_some_and(|at| at <= next) {
            return None;
        }
        self.wakes_at = Some(next);
        self.wakes_at
    }

    pub(super) fn counters(&self) -> Counters {
        self.node.scheduler.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::device_by_name;
    use atoll_core::placement::{DeviceKind, GroupId, Suits};
    use atoll_core::policy_by_name;

    fn setup(policy: &str, launches: u32, blocks: u32) -> NodeSetup {
        let device = *device_by_name("v100").expect("a device of the table");
        NodeSetup { policy: policy_by_name(policy).expect("a policy"), device, queue_capacity: 4, launches, blocks }
    }

    fn plan(setup: &NodeSetup, service_ns: u64, speed: f64) -> Plan {
        let function = ClusterFunction {
            name: "f".into(),
            group: GroupId(0),
            class: Class::BestEffort,
            service_ns,
            reload_ns: 0,
            constant_bytes: 0,
            suits: Suits::All,
        };
        let device = ClusterDevice { kind: DeviceKind(0), slots: 1, memory_bytes: 0, speed };
        Plan::of(setup, &function, &device)
    }

    /// Runs a device until nothing is left to do, as the world does.
    fn run(launches: &mut Launches, mut now: u64) -> Vec<(u64, Over)> {
        let mut over = Vec::new();
        loop {
            over.extend(launches.take_over().into_iter().map(|over| (now, over)));
            match launches.wake_at(now) {
                Some(at) => now = at,
                None => return over,
            }
            launches.advance(now);
        }
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
        let mut launches = Launches::new(&setup);
        launches.start(1000, 7, 0, Class::BestEffort, &plan(&setup, 3_200_000, 1.0), true);
        let over = run(&mut launches, 1000);
        // The launch latencies of the others are hidden behind their predecessors.
        let service = 3_200_000 + setup.device.costs.launch_ns + setup.device.costs.completion_ns;
        let expected = Over { request: 7, outcome: Outcome::Complete, service: Nanos(service) };
        assert_eq!(over, [(1000 + service, expected)]);
        assert_eq!((launches.counters().issued_launches, launches.counters().preemptions), (8, 0));
    }

    #[test]
    fn a_request_waits_for_its_constants_and_no_other_request_waits_for_it() {
        let setup = setup("reset", 2, 80);
        let plan = plan(&setup, 1_000_000, 1.0);
        let mut launches = Launches::new(&setup);
        launches.start(0, 0, 0, Class::BestEffort, &plan, false);
        launches.start(0, 1, 1, Class::BestEffort, &plan, true);
        let first = run(&mut launches, 0);
        assert_eq!(first.iter().map(|(_, over)| over.request).collect::<Vec<_>>(), [1]);
        launches.ready(5_000_000, 0);
        let second = run(&mut launches, 5_000_000);
        assert_eq!(second.iter().map(|(_, over)| over.request).collect::<Vec<_>>(), [0]);
        assert_eq!(second[0].1.service, first[0].1.service, "the load is not part of the service time");
    }

    #[test]
    fn a_real_time_request_preempts_under_policies_that_do() {
        let ends = |policy: &str| {
            let setup = setup(policy, 10, 800);
            let mut launches = Launches::new(&setup);
            launches.start(0, 0, 0, Class::BestEffort, &plan(&setup, 10_000_000, 1.0), true);
            while launches.wake_at(0).is_some_and(|at| at <= 5_000_000) {
                let at = launches.wakes_at.expect("it was set");
                launches.advance(at);
            }
            launches.wakes_at = None;
            launches.start(5_000_000, 1, 1, Class::RealTime, &plan(&setup, 1_000_000, 1.0), true);
            let mut over = run(&mut launches, 5_000_000);
            over.sort_by_key(|(_, over)| over.request);
            let times: Vec<u64> = over.iter().map(|(at, _)| *at).collect();
            (times[0], times[1], launches.counters().preemptions)
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
    fn a_request_that_the_policy_refuses_is_over_at_once() {
        let setup = setup("rt-only", 2, 80);
        let mut launches = Launches::new(&setup);
        launches.start(10, 3, 0, Class::BestEffort, &plan(&setup, 1000, 1.0), true);
        let over = launches.take_over();
        assert_eq!(over.iter().map(|over| (over.request, over.outcome)).collect::<Vec<_>>(), [(3, Outcome::Refused)]);
        assert_eq!(launches.wake_at(10), None);
    }
}
