//! Shares together with other rules of the scheduler, event by event: the bound on starvation, the
//! bound of the host queue, and co-scheduled blocks.

use atoll_core::limits::HOST_QUEUE_TASKS_MAX;
use atoll_core::tokens::{BusyTime, ShareRequest, ShareSpec, ShareState, TokenConfig};
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Event, LaneId, LaunchEnd, LaunchId, LaunchProfile, Nanos, Outcome,
    PreemptLevel, SchedulerConfig, Step, TaskId, TaskSpec, policy_by_name,
};
use std::collections::VecDeque;

const WINDOW: u64 = 1_000_000;
/// How long best-effort work may go without progress.
const WAIT: u64 = 4 * WINDOW;
/// The time of a launch with one block.
const BLOCK: u64 = WINDOW / 20;

struct Harness {
    scheduler: DeviceScheduler,
    now: u64,
    launches: VecDeque<(LaunchId, TaskId)>,
    refused: Vec<TaskId>,
    /// Number of co-scheduled launches.
    pads: u64,
}

impl Harness {
    fn new() -> Harness {
        Harness::with_policy("reset", 1)
    }

    fn with_policy(policy: &str, compute_units: u32) -> Harness {
        let mut scheduler = DeviceScheduler::new(&SchedulerConfig {
            policy: policy_by_name(policy).expect("a policy"),
            queues: 2,
            paired_queues: false,
            queue_capacity: 1,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            compute_units,
            best_effort_wait_ns_max: Some(WAIT),
            perturb: None,
        });
        let config = TokenConfig::for_device(0).with_window(WINDOW, WINDOW / 40).expect("valid settings");
        scheduler.configure_tokens(config);
        Harness { scheduler, now: 0, launches: VecDeque::new(), refused: Vec::new(), pads: 0 }
    }

    fn share(&mut self, client: u32, request: f64, limit: f64) {
        self.share_of(client, 100.0, request, limit);
    }

    fn share_of(&mut self, client: u32, sm_partition: f64, request: f64, limit: f64) {
        let share = ShareRequest { sm_partition, quota_request: request, quota_limit: limit, group: 0 };
        let share = ShareSpec::new(&share).expect("a valid share");
        let mut actions = Vec::new();
        let set = self.scheduler.set_share(Nanos(self.now), LaneId::DEFAULT, ClientId(client), share, &mut actions);
        set.expect("the lane honours it");
        self.carry_out(actions);
    }

    fn send(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.scheduler.handle(Nanos(self.now), event, &mut actions);
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Prepare { task } => self.send(Event::TaskPrepared { task }),
                Action::Issue { launch, task, .. } => self.launches.push_back((launch, task)),
                Action::Pad { .. } => self.pads += 1,
                Action::FinishTask { task, outcome: Outcome::QueueFull, .. } => self.refused.push(task),
                _ => {}
            }
        }
    }

    fn arrive(&mut self, task: u64, client: u32, class: Class, steps: usize, ready: bool) {
        self.send(Event::TaskArrived(TaskSpec {
            task: TaskId(task),
            lane: LaneId::DEFAULT,
            client: ClientId(client),
            class,
            priority: 0,
            steps: vec![Step::Preemptible; steps].into(),
            deadline: None,
            due: None,
            profiles: Some(vec![Some(profile(class)); steps].into()),
            forks: None,
            ready,
        }));
    }

    /// The oldest launch on the device ends after `ns`; returns its task.
    fn end(&mut self, ns: u64) -> u64 {
        self.end_as(ns, LaunchEnd::Complete)
    }

    fn end_as(&mut self, ns: u64, end: LaunchEnd) -> u64 {
        self.now += ns;
        let (launch, task) = self.launches.pop_front().expect("a launch is on the device");
        self.scheduler.note_busy(launch, BusyTime { ended: Nanos(self.now), ns });
        self.send(Event::LaunchEnded { launch, end });
        task.0
    }

    fn state(&self, client: u32) -> ShareState {
        let states = self.scheduler.shares(Nanos(self.now), LaneId::DEFAULT);
        states.into_iter().find(|state| state.client == ClientId(client)).expect("it has a share")
    }
}

/// A block that takes 80 or 100 % of [`BLOCK`], by its class.
fn profile(class: Class) -> LaunchProfile {
    LaunchProfile::new(1, [if class == Class::RealTime { BLOCK } else { BLOCK / 5 * 4 }])
}

#[test]
fn a_slice_goes_to_a_task_that_may_issue() {
    let mut harness = Harness::new();
    harness.share(1, 0.01, 0.01);
    // The older task belongs to a client that has used up the limits of many windows.
    harness.arrive(1, 1, Class::BestEffort, 1_000, true);
    assert_eq!(harness.end(WINDOW), 1);
    harness.arrive(2, 2, Class::BestEffort, 1_000, true);
    harness.arrive(9, 9, Class::RealTime, 1_000, true);
    let begin = harness.now;
    let mut ran = Vec::new();
    while harness.now < begin + 2 * WAIT {
        ran.push(harness.end(WINDOW / 100));
    }
    let slices = harness.scheduler.counters().best_effort_slices;
    assert_eq!(slices, 1, "the slice of the second wait is due next");
    let in_slice = ran.iter().skip_while(|task| **task != 9).filter(|task| **task == 2).count();
    assert!(in_slice >= 2, "the task without a share got {in_slice} launches in a slice");
    assert!(!ran.contains(&1), "a client that used up its limit issued");
    let idle_ns = (harness.now - begin) - ran.len() as u64 * WINDOW / 100;
    assert_eq!(idle_ns, 0, "the device waited for a client without a token");
}

#[test]
fn a_promised_slice_waits_for_a_token_and_no_real_time_work_waits_for_it() {
    let mut harness = Harness::new();
    harness.share(1, 0.1, 0.1);
    harness.share(9, 0.5, 0.5);
    harness.arrive(9, 9, Class::RealTime, 100_000, true);
    harness.arrive(1, 1, Class::BestEffort, 100_000, true);
    let (mut best_effort, mut idle_ns) = (0_u64, 0_u64);
    while harness.now < 40 * WAIT {
        if harness.launches.is_empty() {
            let wakeup = harness.scheduler.next_wakeup().expect("a token is due").0;
            idle_ns += wakeup - harness.now;
            harness.now = wakeup;
            harness.send(Event::Tick);
        } else {
            best_effort += u64::from(harness.end(WINDOW / 200) == 1);
        }
    }
    let part = best_effort as f64 * (WINDOW / 200) as f64 / (40 * WAIT) as f64;
    assert!(part > 0.08 && part < 0.12, "the best-effort client got {part} of the time");
    assert!(idle_ns >= 14 * WAIT, "40 % of the time belong to no client: {idle_ns} ns");
}

#[test]
fn tasks_that_are_not_ready_count_in_the_clients_part_of_the_host_queue() {
    let mut harness = Harness::new();
    harness.share(1, 0.1, 1.0);
    harness.share(2, 0.1, 1.0);
    let part = (HOST_QUEUE_TASKS_MAX / 2) as u64;
    (0..part + 3).for_each(|task| harness.arrive(task, 1, Class::BestEffort, 1, false));
    assert_eq!(harness.refused, [TaskId(part), TaskId(part + 1), TaskId(part + 2)]);
    (0..part).for_each(|task| harness.arrive(10_000 + task, 2, Class::BestEffort, 1, false));
    assert_eq!(harness.refused.len(), 3, "the other client has its part");
    harness.arrive(20_000, 1, Class::RealTime, 1, false);
    assert_eq!(harness.refused.len(), 3, "each class has its own queue");
}

#[test]
fn a_task_is_recalled_from_the_end_of_its_token_until_its_launches_end() {
    let mut harness = Harness::new();
    harness.share(1, 0.1, 0.1);
    harness.arrive(1, 1, Class::BestEffort, 1_000, true);
    assert!(!harness.scheduler.is_recalled(TaskId(1)) && !harness.scheduler.is_recalled(TaskId(7)));
    let expires = harness.scheduler.next_wakeup().expect("the token expires");
    assert_eq!(expires.0, WINDOW / 10, "the request of a window");
    harness.now = expires.0;
    harness.send(Event::Tick);
    assert!(harness.scheduler.is_recalled(TaskId(1)));
    let (launch, _) = harness.launches.pop_front().expect("it runs");
    harness.send(Event::LaunchEnded { launch, end: LaunchEnd::Evicted });
    assert!(!harness.scheduler.is_recalled(TaskId(1)));
    let share = harness.scheduler.share_of(LaneId::DEFAULT, ClientId(1)).expect("it was set");
    assert_eq!((share.request().millionths(), harness.scheduler.token_config().window_ns()), (100_000, WINDOW));
    assert_eq!(harness.scheduler.share_of(LaneId::DEFAULT, ClientId(2)), None);
}

/// A client with a quarter of four compute units and a tenth of the time, whose blocks fit into the
/// launches of a real-time task.
fn padded() -> Harness {
    let mut harness = Harness::with_policy("reef", 4);
    harness.share_of(1, 25.0, 0.1, 0.1);
    harness.arrive(9, 9, Class::RealTime, 1_000, true);
    harness.arrive(1, 1, Class::BestEffort, 1_000, true);
    assert_eq!((harness.end(BLOCK), harness.pads), (9, 1), "the second launch is padded");
    harness
}

#[test]
fn co_scheduled_blocks_are_charged_to_their_client_and_stop_at_its_limit() {
    let (mut harness, of_block) = (padded(), BLOCK / 5 * 4);
    harness.end(BLOCK);
    let state = harness.state(1);
    assert_eq!((state.used_ns, state.asked_ns, state.received_ns), (of_block, of_block, of_block), "{state:?}");
    while harness.now < WINDOW - BLOCK {
        harness.end(BLOCK);
    }
    // Its limit is two and a half blocks; the third one is debt.
    assert_eq!((harness.pads, harness.state(1).used_ns), (3, 3 * of_block));
    while harness.now < 2 * WINDOW - BLOCK {
        harness.end(BLOCK);
    }
    assert_eq!((harness.pads, harness.state(1).used_ns), (5, 5 * of_block - WINDOW / 10), "the next window pays it");
    assert_eq!(harness.scheduler.take_padded(LaneId::DEFAULT, ClientId(1)), 5 * of_block);
    assert_eq!(harness.scheduler.take_padded(LaneId::DEFAULT, ClientId(1)), 0, "it was taken");
}

#[test]
fn blocks_of_a_launch_that_failed_are_not_charged() {
    let mut harness = padded();
    harness.end_as(BLOCK, LaunchEnd::Failed);
    let state = harness.state(1);
    assert_eq!((state.received_ns, harness.scheduler.take_padded(LaneId::DEFAULT, ClientId(1))), (0, 0), "{state:?}");
}
