//! Shares together with other rules of the scheduler, event by event: the bound on starvation, and
//! the bound of the host queue.

use atoll_core::limits::HOST_QUEUE_TASKS_MAX;
use atoll_core::tokens::{BusyTime, ShareRequest, ShareSpec, TokenConfig};
use atoll_core::{
    Action, Class, ClientId, DeviceScheduler, Event, LaneId, LaunchEnd, LaunchId, Nanos, Outcome, PreemptLevel,
    SchedulerConfig, Step, TaskId, TaskSpec, policy_by_name,
};
use std::collections::VecDeque;

const WINDOW: u64 = 1_000_000;
/// How long best-effort work may go without progress.
const WAIT: u64 = 4 * WINDOW;

struct Harness {
    scheduler: DeviceScheduler,
    now: u64,
    launches: VecDeque<(LaunchId, TaskId)>,
    refused: Vec<TaskId>,
}

impl Harness {
    fn new() -> Harness {
        let mut scheduler = DeviceScheduler::new(&SchedulerConfig {
            policy: policy_by_name("reset").expect("a policy"),
            queues: 2,
            paired_queues: false,
            queue_capacity: 1,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            compute_units: 1,
            best_effort_wait_ns_max: Some(WAIT),
            perturb: None,
        });
        let config = TokenConfig::for_device(0).with_window(WINDOW, WINDOW / 40).expect("valid settings");
        scheduler.configure_tokens(config);
        Harness { scheduler, now: 0, launches: VecDeque::new(), refused: Vec::new() }
    }

    fn share(&mut self, client: u32, request: f64, limit: f64) {
        let share = ShareRequest { sm_partition: 100.0, quota_request: request, quota_limit: limit, group: 0 };
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
            profiles: None,
            forks: None,
            ready,
        }));
    }

    /// The oldest launch on the device ends after `ns`; returns its task.
    fn end(&mut self, ns: u64) -> u64 {
        self.now += ns;
        let (launch, task) = self.launches.pop_front().expect("a launch is on the device");
        self.scheduler.note_busy(launch, BusyTime { ended: Nanos(self.now), ns });
        self.send(Event::LaunchEnded { launch, end: LaunchEnd::Complete });
        task.0
    }
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
