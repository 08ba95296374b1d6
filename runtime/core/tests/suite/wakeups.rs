//! Wakeup times of the scheduler: when it needs an [`Event::Tick`].

use atoll_core::limits::{ABORT_GRACE_NS, HANG_NS};
use atoll_core::*;
use std::sync::Arc;

const WAIT_NS: u64 = 1_000_000;

fn scheduler(perturb: Option<u64>) -> DeviceScheduler {
    DeviceScheduler::new(&SchedulerConfig {
        policy: policy_by_name("reset").expect("a policy"),
        queues: 2,
        paired_queues: false,
        queue_capacity: 1,
        preempt_level: PreemptLevel::Deactivate,
        can_abort: true,
        compute_units: 1,
        best_effort_wait_ns_max: Some(WAIT_NS),
        perturb,
    })
}

/// Sends an event to the scheduler; every task is prepared at once.
fn send(scheduler: &mut DeviceScheduler, now: u64, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    scheduler.handle(Nanos(now), event, &mut actions);
    for action in actions.clone() {
        if let Action::Prepare { task } = action {
            actions.extend(send(scheduler, now, Event::TaskPrepared { task }));
        }
    }
    actions
}

fn arrival(task: u64, class: Class, deadline: Option<u64>) -> Event {
    let (steps, deadline) = (Arc::from([Step::Preemptible; 2]), deadline.map(Nanos));
    Event::TaskArrived(TaskSpec {
        task: TaskId(task),
        lane: LaneId::DEFAULT,
        client: ClientId(0),
        class,
        priority: 0,
        steps,
        deadline,
        due: None,
        profiles: None,
        forks: None,
        ready: true,
    })
}

#[test]
fn at_the_earliest_deadline() {
    let mut scheduler = scheduler(None);
    assert_eq!(scheduler.next_wakeup(), None, "there are no tasks");
    send(&mut scheduler, 1, arrival(0, Class::RealTime, Some(7000)));
    send(&mut scheduler, 2, arrival(1, Class::RealTime, Some(5000)));
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(5000)));
    let late = Action::FinishTask { task: TaskId(1), outcome: Outcome::DeadlineExceeded, preemptions: 0 };
    assert!(!send(&mut scheduler, 4999, Event::Tick).contains(&late));
    assert!(send(&mut scheduler, 5000, Event::Tick).contains(&late));
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(7000)));
}

#[test]
fn for_aborting_launches_of_tasks_that_are_over_and_for_counting_them_as_hung() {
    let mut scheduler = scheduler(None);
    send(&mut scheduler, 0, arrival(0, Class::RealTime, None));
    send(&mut scheduler, 10, Event::CancelTask { task: TaskId(0) });
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(10 + ABORT_GRACE_NS)));
    assert_eq!(send(&mut scheduler, 9 + ABORT_GRACE_NS, Event::Tick), []);
    let (launch, queue) = (LaunchId(0), QueueId(0));
    assert_eq!(send(&mut scheduler, 10 + ABORT_GRACE_NS, Event::Tick), [Action::Abort { launch, queue }]);
    let hung = 10 + ABORT_GRACE_NS + HANG_NS;
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(hung)));
    assert_eq!(send(&mut scheduler, hung - 1, Event::Tick), []);
    assert_eq!(send(&mut scheduler, hung, Event::Tick), [Action::DeclareHung { launch, queue }]);
    assert_eq!(
        (send(&mut scheduler, hung + 1, Event::Tick), scheduler.next_wakeup()),
        (vec![], None),
        "a hang is reported once"
    );
    let over = Action::FinishTask { task: TaskId(0), outcome: Outcome::Cancelled, preemptions: 0 };
    assert_eq!(send(&mut scheduler, hung + 2, Event::LaunchEnded { launch, end: LaunchEnd::Aborted }), [over]);
}

#[test]
fn not_for_a_host_step_of_a_task_that_is_over() {
    let mut scheduler = scheduler(None);
    let (steps, class, task) = (Arc::from([Step::Host]), Class::RealTime, TaskId(0));
    let spec = TaskSpec {
        task,
        lane: LaneId::DEFAULT,
        client: ClientId(0),
        class,
        priority: 0,
        steps,
        deadline: None,
        due: None,
        profiles: None,
        forks: None,
        ready: true,
    };
    assert!(send(&mut scheduler, 0, Event::TaskArrived(spec)).contains(&Action::RunHostStep { task, step: 0 }));
    assert_eq!(send(&mut scheduler, 1, Event::CancelTask { task }), []);
    assert_eq!(scheduler.next_wakeup(), None, "a host step cannot be aborted");
    let over = Action::FinishTask { task, outcome: Outcome::Cancelled, preemptions: 0 };
    assert_eq!(send(&mut scheduler, 2, Event::HostStepDone { task, steps: None, next: None }), [over]);
}

#[test]
fn for_the_begin_and_the_end_of_a_best_effort_slice() {
    let mut scheduler = scheduler(None);
    send(&mut scheduler, 0, arrival(0, Class::BestEffort, None));
    assert_eq!(scheduler.next_wakeup(), None, "no real-time task is in its way");
    let raised = send(&mut scheduler, 100, arrival(1, Class::RealTime, None));
    assert!(raised.contains(&Action::RaiseEpoch { task: TaskId(0), epoch: Epoch(1) }));
    send(&mut scheduler, 200, Event::LaunchEnded { launch: LaunchId(0), end: LaunchEnd::Evicted });
    let (begin, end) = (100 + WAIT_NS, 100 + WAIT_NS + WAIT_NS / BEST_EFFORT_SLICE_DIVISOR);
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(begin)));
    assert_eq!(send(&mut scheduler, begin - 1, Event::Tick), []);
    let actions = send(&mut scheduler, begin, Event::Tick);
    assert!(matches!(actions[..], [Action::Issue { task: TaskId(0), step: 0, .. }]), "{actions:?}");
    assert_eq!(scheduler.slice(LaneId::DEFAULT), Some(Slice { task: TaskId(0), until: Some(Nanos(end)) }));
    assert_eq!(
        send(&mut scheduler, begin + 1, Event::LaunchEnded { launch: LaunchId(1), end: LaunchEnd::Complete }),
        [],
        "the real-time task waits"
    );
    assert_eq!(scheduler.next_wakeup(), Some(Nanos(end)));
    let actions = send(&mut scheduler, end, Event::Tick);
    let [Action::RaiseEpoch { task: TaskId(0), .. }, Action::Issue { task: TaskId(1), step: 1, .. }] = actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!((scheduler.slice(LaneId::DEFAULT), scheduler.next_wakeup()), (None, Some(Nanos(end + WAIT_NS))));
}

#[test]
fn a_promised_slice_is_cancelled_once_no_real_time_task_is_in_the_way() {
    let mut scheduler = scheduler(None);
    let mut actions = Vec::new();
    send(&mut scheduler, 0, arrival(0, Class::RealTime, None));
    scheduler.handle(Nanos(1), arrival(1, Class::BestEffort, None), &mut actions);
    scheduler.handle(Nanos(1 + WAIT_NS), Event::Tick, &mut actions);
    assert_eq!(actions, [Action::Prepare { task: TaskId(1) }]);
    assert_eq!(scheduler.slice(LaneId::DEFAULT), Some(Slice { task: TaskId(1), until: None }));
    assert_eq!(scheduler.next_wakeup(), None, "it begins when the task is prepared");
    (0..2).for_each(|launch| {
        drop(send(
            &mut scheduler,
            2 + WAIT_NS,
            Event::LaunchEnded { launch: LaunchId(launch), end: LaunchEnd::Complete },
        ))
    });
    assert_eq!((scheduler.slice(LaneId::DEFAULT), scheduler.next_wakeup()), (None, None));
}

#[test]
fn for_perturbation_while_there_are_launches_in_flight() {
    let mut scheduler = scheduler(Some(1));
    assert_eq!(scheduler.next_wakeup(), None);
    send(&mut scheduler, 0, arrival(0, Class::RealTime, None));
    assert!(scheduler.next_wakeup().is_some());
}
