//! Lanes: invariants of a device whose lanes open and close at any time, and isolation between
//! lanes.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use crate::driver::{Driver, Mix};
use atoll_core::tokens::{ShareRequest, ShareSpec, Span};
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Event, LaneConfig, LaneError, LaneId, LaunchEnd, LaunchId, Nanos,
    POLICIES, PreemptLevel, QueueId, SchedulerConfig, Step, TaskId, TaskSpec, policy_by_name,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const SEEDS: u64 = 1_500;
const EVENTS_MAX: usize = 20_000;
const LANES_MAX: usize = 4;
const UNITS: u32 = 9;

fn config() -> SchedulerConfig {
    SchedulerConfig {
        policy: policy_by_name("reset").expect("a policy"),
        queues: 4,
        paired_queues: false,
        queue_capacity: 4,
        preempt_level: PreemptLevel::Interrupt,
        can_abort: true,
        compute_units: UNITS,
        best_effort_wait_ns_max: None,
        perturb: None,
    }
}

fn lane(name: u32, queues: Range<u32>) -> LaneConfig {
    LaneConfig { lane: LaneId(name), queues, paired_queues: false, compute_units: 1 }
}

/// A device with lanes that open and close.
struct World {
    scheduler: DeviceScheduler,
    driver: Driver,
    /// Queues of the lanes that are open or closing.
    open: BTreeMap<LaneId, Range<u32>>,
    closing: BTreeSet<LaneId>,
    opened: u32,
    /// The queue of each task's last issued launch.
    issued_in: BTreeMap<TaskId, QueueId>,
    actions: Vec<Action>,
    resumed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mix = Mix { tasks: 60, faults: [0, 8, 30][(seed % 3) as usize], cold: seed.is_multiple_of(4) };
        let mut driver = Driver::new(seed, mix);
        let config = SchedulerConfig {
            policy: &POLICIES[(seed % POLICIES.len() as u64) as usize],
            queues: 1 + driver.rng.below(4) as u32,
            paired_queues: false,
            queue_capacity: 1 + driver.rng.below(4) as u32,
            preempt_level: if seed % 5 == 4 { PreemptLevel::Block } else { PreemptLevel::Interrupt },
            can_abort: driver.rng.below(3) > 0,
            best_effort_wait_ns_max: (driver.rng.below(3) == 0).then_some(300_000),
            perturb: (driver.rng.below(5) == 0).then_some(seed),
            ..config()
        };
        let open = BTreeMap::from([(LaneId::DEFAULT, 0..config.queues)]);
        World {
            scheduler: DeviceScheduler::new(&config),
            driver,
            open,
            closing: BTreeSet::new(),
            opened: 0,
            issued_in: BTreeMap::new(),
            actions: Vec::new(),
            resumed: 0,
        }
    }

    /// Runs until every task is finished and every lane is closed; returns how many tasks continued
    /// in the default lane.
    fn run(mut self) -> u64 {
        for _ in 0..EVENTS_MAX {
            if self.driver.is_done() {
                return self.finish();
            }
            match self.driver.rng.below(24) {
                0 if self.open.len() < LANES_MAX => self.open_lane(),
                1 => self.close_lane(),
                _ => {
                    let event = self.driver.next(self.scheduler.next_wakeup());
                    self.scheduler.handle(self.driver.now, event, &mut self.actions);
                }
            }
            self.carry_out();
        }
        panic!("{} tasks never end", self.driver.tasks.len());
    }

    fn open_lane(&mut self) {
        self.opened += 1;
        let begin = 4 * (1 + self.opened % 15);
        let queues = begin..begin + 1 + self.opened % 4;
        let config = lane(self.opened, queues.clone());
        if self.open.values().any(|other| other.start < queues.end && queues.start < other.end) {
            let refused = self.scheduler.open_lane(&config);
            return assert!(matches!(refused, Err(LaneError::QueueTaken(..))), "{refused:?}");
        }
        self.scheduler.open_lane(&config).expect("the queues are free");
        self.open.insert(config.lane, queues);
        self.driver.lanes.push(config.lane);
    }

    fn close_lane(&mut self) {
        let lane = self.driver.lanes[self.driver.rng.below(self.driver.lanes.len() as u64) as usize];
        let answer = self.scheduler.close_lane(self.driver.now, lane, &mut self.actions);
        if lane == LaneId::DEFAULT {
            return assert_eq!(answer, Err(LaneError::Default));
        }
        // Tasks keep arriving for the lane until it is closed.
        if !self.closing.insert(lane) {
            assert_eq!(answer, Err(LaneError::Closing(lane)));
        }
    }

    fn carry_out(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            if let Action::Issue { task, queue, .. } = action {
                let (lane, _) =
                    self.open.iter().find(|(_, queues)| queues.contains(&queue.0)).expect("a queue of an open lane");
                assert!(!self.closing.contains(lane), "a launch is issued in {lane:?}, which is closing");
                let before = self.issued_in.insert(task, queue);
                if before.is_some_and(|before| before != queue) {
                    assert_eq!(self.driver.tasks[&task].in_flight, 0, "{task:?} has launches in two queues");
                    assert_eq!(*lane, LaneId::DEFAULT, "{task:?} moves to another lane than the default one");
                    self.resumed += 1;
                }
            }
            self.driver.carry_out(&action);
        }
        for lane in std::mem::take(&mut self.driver.closed) {
            assert!(self.closing.remove(&lane), "{lane:?} was closed without a request");
            let queues = self.open.remove(&lane).expect("it was open");
            let is_busy =
                |queue: &u32| self.driver.queues.get(&QueueId(*queue)).is_some_and(|launches| !launches.is_empty());
            assert!(!queues.clone().any(|queue| is_busy(&queue)), "{lane:?} is closed and has launches on the device");
            self.driver.lanes.retain(|other| *other != lane);
        }
        assert_eq!(self.scheduler.task_count(), self.driver.tasks.len(), "tasks are lost");
    }

    fn finish(mut self) -> u64 {
        for lane in self.open.keys().copied().filter(|lane| *lane != LaneId::DEFAULT && !self.closing.contains(lane)) {
            self.scheduler.close_lane(self.driver.now, lane, &mut self.actions).expect("it is open");
        }
        let states: Vec<_> = self.scheduler.lanes().collect();
        assert!(states.len() == 1 && states[0].tasks == 0, "{states:?}");
        assert_eq!(self.scheduler.counters().arrived, self.scheduler.counters().finished);
        let class = [Class::RealTime, Class::BestEffort];
        assert_eq!(class.map(|class| self.scheduler.waiting(class)), [0, 0]);
        self.resumed
    }
}

#[test]
fn lanes_open_and_close_at_any_time_and_no_task_is_lost() {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    let seeds = only.map_or(0..SEEDS, |seed| seed..seed + 1);
    let mut resumed = 0;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        resumed +=
            run.unwrap_or_else(|_| panic!("again: ATOLL_SEED={seed} cargo test -p atoll-core --test suite lanes"));
    }
    assert!(
        only.is_some() || resumed > 500,
        "only {resumed} tasks continued in another lane: the runs cover too little"
    );
}

fn task(id: u64, lane: u32, class: Class, steps: &[Step]) -> Event {
    let (task, lane, client) = (TaskId(id), LaneId(lane), ClientId(0));
    Event::TaskArrived(TaskSpec {
        task,
        lane,
        client,
        class,
        priority: 0,
        steps: Arc::from(steps),
        deadline: None,
        due: None,
        profiles: None,
        forks: None,
        ready: true,
    })
}

/// Sends an event and answers every preparation; returns the issued launches with their queues, and
/// all actions.
fn send(scheduler: &mut DeviceScheduler, event: Event) -> (Vec<(LaunchId, u32)>, Vec<Action>) {
    let (mut all, mut actions) = (Vec::new(), Vec::new());
    scheduler.handle(Nanos(0), event, &mut actions);
    while !actions.is_empty() {
        for action in std::mem::take(&mut actions) {
            all.push(action);
            if let Action::Prepare { task } = action {
                scheduler.handle(Nanos(0), Event::TaskPrepared { task }, &mut actions);
            }
        }
    }
    let issued = |action: &Action| {
        if let Action::Issue { launch, queue, .. } = *action { Some((launch, queue.0)) } else { None }
    };
    (all.iter().filter_map(issued).collect(), all)
}

#[test]
fn real_time_work_evicts_in_its_own_lane_only() {
    let mut scheduler = DeviceScheduler::new(&config());
    scheduler.open_lane(&lane(1, 4..6)).expect("free queues");
    let (issued, _) = send(&mut scheduler, task(1, 0, Class::BestEffort, &[Step::Preemptible; 3]));
    assert_eq!(issued.len(), 3);
    let (issued, actions) = send(&mut scheduler, task(2, 1, Class::RealTime, &[Step::Preemptible]));
    assert_eq!(issued, [(LaunchId(3), 4)], "the lane's first queue, and a number of its own");
    assert!(!actions.iter().any(|action| matches!(action, Action::RaiseEpoch { .. })), "{actions:?}");
    let (_, actions) = send(&mut scheduler, task(3, 0, Class::RealTime, &[Step::Preemptible]));
    assert!(actions.iter().any(|action| matches!(action, Action::RaiseEpoch { task: TaskId(1), .. })), "{actions:?}");
}

#[test]
fn a_busy_lane_that_closes_is_preempted_and_its_task_goes_on_in_the_default_lane() {
    let mut scheduler = DeviceScheduler::new(&config());
    scheduler.open_lane(&lane(1, 4..6)).expect("free queues");
    let (issued, _) = send(&mut scheduler, task(1, 1, Class::BestEffort, &[Step::Preemptible; 2]));
    assert_eq!(issued, [(LaunchId(0), 5), (LaunchId(1), 5)]);
    let mut actions = Vec::new();
    scheduler.close_lane(Nanos(0), LaneId(1), &mut actions).expect("it is open");
    assert!(matches!(actions[..], [Action::RaiseEpoch { task: TaskId(1), .. }]), "{actions:?}");
    let (issued, _) = send(&mut scheduler, Event::LaunchEnded { launch: LaunchId(0), end: LaunchEnd::Complete });
    assert_eq!(issued, [], "the second launch is still in flight");
    let (issued, actions) = send(&mut scheduler, Event::LaunchEnded { launch: LaunchId(1), end: LaunchEnd::Evicted });
    assert_eq!(issued, [(LaunchId(2), 2)], "its second step, in the default lane");
    assert!(actions.contains(&Action::CloseLane { lane: LaneId(1) }));
    let (_, actions) = send(&mut scheduler, Event::LaunchEnded { launch: LaunchId(2), end: LaunchEnd::Complete });
    assert!(matches!(actions[..], [Action::FinishTask { task: TaskId(1), preemptions: 1, .. }]), "{actions:?}");
}

/// A device with lanes 1 and 2 on two of four compute units each, and the share of a client that is
/// bound to one of them.
fn bound_lanes() -> (DeviceScheduler, ShareSpec) {
    let mut scheduler = DeviceScheduler::new(&config());
    for (name, first) in [(1, 0), (2, 2)] {
        scheduler.open_lane(&lane(name, 2 + 2 * name..4 + 2 * name)).expect("free queues");
        scheduler.join_lane(LaneId(name), Span { first, count: 2 }).expect("it is open");
    }
    let share = ShareRequest { sm_partition: 50.0, quota_request: 0.5, quota_limit: 1.0, group: 0 };
    (scheduler, ShareSpec::new(&share).expect("a valid share"))
}

fn evict(scheduler: &mut DeviceScheduler, launch: u64) -> Vec<(LaunchId, u32)> {
    send(scheduler, Event::LaunchEnded { launch: LaunchId(launch), end: LaunchEnd::Evicted }).0
}

#[test]
fn a_client_that_moves_to_other_compute_units_takes_its_tasks_along() {
    for closes in [false, true] {
        let (mut scheduler, share) = bound_lanes();
        let (client, mut actions) = (ClientId(0), Vec::new());
        scheduler.set_share(Nanos(0), LaneId(1), client, share, &mut actions).expect("it fits");
        let (issued, _) = send(&mut scheduler, task(1, 1, Class::BestEffort, &[Step::Preemptible; 2]));
        assert_eq!(issued.len(), 2);
        assert_eq!(send(&mut scheduler, task(2, 1, Class::BestEffort, &[Step::Preemptible])).0.len(), 1);
        scheduler.set_share(Nanos(0), LaneId(2), client, share, &mut actions).expect("it fits");
        let evicted =
            |task| actions.iter().any(|action| matches!(action, Action::RaiseEpoch { task: it, .. } if *it == task));
        assert!(evicted(TaskId(1)) && evicted(TaskId(2)), "{actions:?}");
        if closes {
            scheduler.close_lane(Nanos(0), LaneId(1), &mut actions).expect("it is open");
        }
        assert_eq!((evict(&mut scheduler, 0), evict(&mut scheduler, 1)), (vec![], vec![]));
        // Its token for the old units is over once its last launch there has ended.
        let issued = evict(&mut scheduler, 2);
        assert_eq!(issued.len(), 3, "{issued:?}");
        assert!(issued.iter().all(|(_, queue)| (6..8).contains(queue)), "not in the lane of its units: {issued:?}");
        assert_eq!([1, 2].map(|task| scheduler.lane_of(TaskId(task))), [Some(LaneId(2)); 2]);
        for (launch, _) in issued {
            send(&mut scheduler, Event::LaunchEnded { launch, end: LaunchEnd::Complete });
        }
        assert_eq!(scheduler.task_count(), 0);
    }
}

#[test]
fn a_client_whose_lane_closes_leaves_its_compute_units_to_others_at_once() {
    let (mut scheduler, share) = bound_lanes();
    let whole = ShareRequest { sm_partition: 100.0, quota_request: 0.4, quota_limit: 1.0, group: 0 };
    let whole = ShareSpec::new(&whole).expect("a valid share");
    let mut actions = Vec::new();
    scheduler.set_share(Nanos(0), LaneId(1), ClientId(0), share, &mut actions).expect("it fits");
    scheduler.set_share(Nanos(0), LaneId::DEFAULT, ClientId(1), whole, &mut actions).expect("it fits");
    assert_eq!(send(&mut scheduler, task(1, 1, Class::BestEffort, &[Step::Preemptible])).0.len(), 1);
    let Event::TaskArrived(spec) = task(2, 0, Class::BestEffort, &[Step::Preemptible]) else { unreachable!() };
    let (issued, _) = send(&mut scheduler, Event::TaskArrived(TaskSpec { client: ClientId(1), ..spec }));
    assert_eq!(issued, [], "the units of lane 1 are in use");
    scheduler.close_lane(Nanos(0), LaneId(1), &mut actions).expect("it is open");
    let issued = evict(&mut scheduler, 0);
    assert!(!issued.is_empty(), "nothing was issued when the units became free");
    assert_eq!(scheduler.next_wakeup().filter(|at| *at == Nanos(0)), None, "a tick was left over");
}

#[test]
fn a_lane_opened_and_closed_a_thousand_times_leaves_nothing() {
    let mut scheduler = DeviceScheduler::new(&config());
    for name in 1..=1_000 {
        scheduler.open_lane(&lane(name, 4..6)).expect("the queues are free again");
        let (issued, _) = send(&mut scheduler, task(name.into(), name, Class::BestEffort, &[Step::Preemptible]));
        assert_eq!(issued.len(), 1);
        let mut actions = Vec::new();
        scheduler.close_lane(Nanos(0), LaneId(name), &mut actions).expect("it is open");
        let (moved, _) = send(&mut scheduler, Event::LaunchEnded { launch: issued[0].0, end: LaunchEnd::Evicted });
        send(&mut scheduler, Event::LaunchEnded { launch: moved[0].0, end: LaunchEnd::Complete });
        assert_eq!((scheduler.lanes().count(), scheduler.task_count(), scheduler.next_wakeup()), (1, 0, None));
    }
    assert_eq!(scheduler.counters().finished, [0, 1_000]);
}

#[test]
fn invalid_lanes_are_refused_with_the_cause() {
    let mut scheduler = DeviceScheduler::new(&config());
    let mut refused = |config: LaneConfig| scheduler.open_lane(&config).expect_err("refused").to_string();
    assert_eq!(refused(lane(0, 4..5)), "lane 0 already exists or existed; use a new id");
    assert_eq!(refused(lane(1, 3..6)), "device queue 3 belongs to lane 0");
    assert_eq!(refused(lane(1, 4..4)), "a lane cannot have the device queues 4 to 4; a device has 64");
    assert_eq!(refused(lane(1, 63..65)), "a lane cannot have the device queues 63 to 65; a device has 64");
    assert_eq!(
        refused(LaneConfig { compute_units: 0, ..lane(1, 4..5) }),
        "a lane cannot have 0 compute units; the device has 9"
    );
    assert_eq!(
        refused(LaneConfig { compute_units: 10, ..lane(1, 4..5) }),
        "a lane cannot have 10 compute units; the device has 9"
    );
    let mut close =
        |lane| scheduler.close_lane(Nanos(0), LaneId(lane), &mut Vec::new()).expect_err("refused").to_string();
    assert_eq!(close(0), "the default lane cannot be closed");
    assert_eq!(close(7), "there is no lane 7");
    let (issued, _) = send(&mut scheduler, task(1, 7, Class::BestEffort, &[Step::Preemptible]));
    assert_eq!(issued, [(LaunchId(0), 2)], "a task of a lane that is closed runs in the default lane");
}
