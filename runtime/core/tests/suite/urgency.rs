//! Ordering by urgency, event by event: between real-time tasks, and for starving best-effort
//! tasks.

use atoll_core::{
    Action, BEST_EFFORT_SLICE_DIVISOR, Class, ClientId, DeviceScheduler, Event, LaneId, LaunchEnd, LaunchId,
    LaunchProfile, Nanos, Outcome, PreemptLevel, QueueId, SchedulerConfig, Step, TaskId, TaskSpec, policy_by_name,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// A scheduler, and its launches on the device.
struct Harness {
    scheduler: DeviceScheduler,
    now: u64,
    best_effort_steps: Arc<[Step]>,
    launches: VecDeque<(LaunchId, TaskId, QueueId)>,
    /// Co-scheduled blocks: their task and step, and the task of the padded launch.
    pads: Vec<(u64, u32, u64)>,
    has_profiles: bool,
    /// Tasks that were evicted, in order.
    evicted: Vec<TaskId>,
    finished: Vec<TaskId>,
    /// The outcome with which tasks have to end.
    expected: Outcome,
}

impl Harness {
    fn new(policy: &str, queues: u32, best_effort_wait_ns_max: Option<u64>) -> Harness {
        let config = SchedulerConfig {
            policy: policy_by_name(policy).expect("a policy"),
            queues,
            paired_queues: false,
            queue_capacity: 2,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            compute_units: 4,
            best_effort_wait_ns_max,
            perturb: None,
        };
        let scheduler = DeviceScheduler::new(&config);
        let best_effort_steps = Arc::from([Step::Preemptible; 10_000]);
        Harness {
            scheduler,
            now: 0,
            best_effort_steps,
            launches: VecDeque::new(),
            pads: Vec::new(),
            has_profiles: false,
            evicted: Vec::new(),
            finished: Vec::new(),
            expected: Outcome::Complete,
        }
    }

    fn send(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.scheduler.handle(Nanos(self.now), event, &mut actions);
            let mut pads = Vec::new();
            for action in actions {
                match action {
                    Action::Pad { task, step, .. } => pads.push((task.0, step)),
                    Action::Prepare { task } => events.push_back(Event::TaskPrepared { task }),
                    Action::Issue { launch, task, queue, .. } => {
                        self.launches.push_back((launch, task, queue));
                        self.pads.extend(pads.drain(..).map(|(padding, step)| (padding, step, task.0)));
                    }
                    Action::RaiseEpoch { task, .. } => self.evicted.push(task),
                    Action::FinishTask { task, outcome, .. } => {
                        assert_eq!(outcome, self.expected);
                        self.finished.push(task);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn arrive(&mut self, task: u64, class: Class, priority: u32, deadline: Option<u64>) {
        let steps = match class {
            Class::RealTime => Arc::from([Step::Preemptible; 3]),
            Class::BestEffort => Arc::clone(&self.best_effort_steps),
        };
        let deadline = deadline.map(Nanos);
        let wave_ns = if class == Class::RealTime { 1000 } else { 100 };
        let profiles =
            self.has_profiles.then(|| steps.iter().map(|_| Some(LaunchProfile::new(1, [wave_ns]))).collect());
        let spec = TaskSpec {
            task: TaskId(task),
            lane: LaneId::DEFAULT,
            client: ClientId(0),
            class,
            priority,
            steps,
            deadline,
            due: None,
            profiles,
            forks: None,
            ready: true,
        };
        self.send(Event::TaskArrived(spec));
    }

    fn real_time(&mut self, task: u64, priority: u32) {
        self.arrive(task, Class::RealTime, priority, None);
    }

    /// Reports the end of a task's oldest launch.
    fn end(&mut self, task: u64, end: LaunchEnd) {
        let at = self.launches.iter().position(|(_, owner, _)| owner.0 == task).expect("a launch of the task");
        let (launch, ..) = self.launches.remove(at).expect("it was found");
        self.send(Event::LaunchEnded { launch, end });
    }

    fn end_all(&mut self, tasks: &[u64], end: LaunchEnd) {
        tasks.iter().for_each(|&task| self.end(task, end));
    }

    /// Tasks and queues of the launches on the device.
    fn on_device(&self) -> Vec<(u64, u32)> {
        self.launches.iter().map(|(_, task, queue)| (task.0, queue.0)).collect()
    }
}

#[test]
fn a_more_urgent_task_evicts_and_issues_at_once_and_the_other_continues_later() {
    for policy in ["reset", "reef"] {
        let mut harness = Harness::new(policy, 4, None);
        harness.real_time(0, 5);
        harness.real_time(1, 4);
        assert_eq!(harness.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)], "{policy}: not behind evicted launches");
        assert_eq!(harness.evicted, [TaskId(0)]);
        harness.real_time(2, 1);
        assert_eq!(
            (harness.evicted.last(), harness.launches.len()),
            (Some(&TaskId(1)), 4),
            "both queues are full of evicted launches"
        );
        harness.end(0, LaunchEnd::Complete);
        assert_eq!(harness.on_device(), [(0, 0), (1, 1), (1, 1), (2, 0)], "one launch had run to its end");
        harness.end(0, LaunchEnd::Evicted);
        harness.end_all(&[1, 1], LaunchEnd::Evicted);
        harness.end_all(&[2, 2, 2], LaunchEnd::Complete);
        assert_eq!(harness.on_device(), [(1, 1), (1, 1)], "the next task by rank, in its old queue");
        harness.end_all(&[1, 1, 1], LaunchEnd::Complete);
        harness.end_all(&[0, 0], LaunchEnd::Complete);
        assert_eq!(harness.finished, [2, 1, 0].map(TaskId));
    }
}

#[test]
fn no_task_waits_behind_launches_of_a_task_that_is_over() {
    let mut harness = Harness::new("reset", 4, None);
    harness.real_time(0, 5);
    harness.expected = Outcome::Cancelled;
    harness.send(Event::CancelTask { task: TaskId(0) });
    assert_eq!(harness.evicted, [TaskId(0)], "its launches are evicted");
    harness.real_time(1, 5);
    assert_eq!(harness.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
}

#[test]
fn equals_run_one_after_the_other() {
    let mut harness = Harness::new("reset", 8, None);
    harness.real_time(0, 3);
    harness.real_time(1, 3);
    harness.real_time(2, 4);
    assert_eq!(harness.on_device(), [(0, 0), (0, 0)]);
    harness.end(0, LaunchEnd::Complete);
    assert_eq!(harness.on_device(), [(0, 0), (0, 0)]);
    harness.end(0, LaunchEnd::Complete);
    assert_eq!(harness.on_device(), [(0, 0), (1, 0)], "behind the last launch, in the same queue");
    harness.end(1, LaunchEnd::Complete);
    assert_eq!(harness.on_device(), [(0, 0), (1, 0)], "a launch on another executor may end first");
    assert_eq!(harness.evicted, []);
}

#[test]
fn with_few_queues_real_time_tasks_share_one() {
    let mut harness = Harness::new("reset", 3, None);
    harness.real_time(0, 5);
    harness.real_time(1, 4);
    assert_eq!(harness.on_device(), [(0, 0), (0, 0)]);
    harness.end(0, LaunchEnd::Evicted);
    assert_eq!(harness.on_device(), [(0, 0), (1, 0)]);
}

#[test]
fn the_earliest_deadline_is_the_most_urgent() {
    let mut harness = Harness::new("edf", 4, None);
    harness.arrive(0, Class::RealTime, 0, None);
    harness.arrive(1, Class::RealTime, 9, Some(2_000_000));
    harness.arrive(2, Class::RealTime, 0, Some(3_000_000));
    assert_eq!(harness.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
    assert_eq!(harness.evicted, [TaskId(0)]);
    // Best-effort tasks with deadlines wait for those without, and start in their order.
    harness.arrive(3, Class::BestEffort, 0, Some(1_000_000));
    assert_eq!(harness.launches.len(), 4);
}

#[test]
fn policies_that_wait_never_evict() {
    for policy in ["streams", "sequential", "block-wait", "rt-only"] {
        let mut harness = Harness::new(policy, 8, None);
        harness.real_time(0, 5);
        harness.real_time(1, 3);
        harness.real_time(2, 1);
        harness.end_all(&[0, 0], LaunchEnd::Complete);
        assert_eq!(harness.on_device(), [(0, 0), (2, 0)], "{policy}: the more urgent starts first");
        assert_eq!(harness.evicted, [], "{policy}");
    }
}

#[test]
fn best_effort_tasks_are_prepared_when_a_queue_is_free_for_them() {
    let mut harness = Harness::new("streams", 3, None);
    harness.best_effort_steps = Arc::from([Step::Preemptible, Step::NotPreemptible]);
    (0..4).for_each(|task| harness.arrive(task, Class::BestEffort, 0, None));
    assert_eq!(harness.on_device(), [(0, 1), (1, 2)]);
    assert_eq!(
        harness.scheduler.waiting(Class::BestEffort),
        2,
        "there is room, but launches of different tasks must not interleave"
    );
    harness.end(1, LaunchEnd::Complete);
    harness.send(Event::Tick);
    assert_eq!(harness.on_device(), [(0, 1), (1, 2), (2, 2)], "behind the last launch of another");
    assert_eq!(harness.scheduler.waiting(Class::BestEffort), 1);
}

/// Runs real-time tasks without a pause for `until` nanoseconds; returns how many slices
/// best-effort work got, and how many of its launches ran.
fn beside_continuous_load(policy: &str, queues: u32, best_effort_wait_ns_max: Option<u64>, until: u64) -> (u64, u64) {
    const LAUNCH_NS: u64 = 1000;
    let mut harness = Harness::new(policy, queues, best_effort_wait_ns_max);
    let (mut tasks, mut ran) = (1000, 0);
    harness.real_time(999, 0);
    (0..3).for_each(|task| harness.arrive(task, Class::BestEffort, 0, None));
    while harness.now < until {
        while harness.scheduler.waiting(Class::RealTime) == 0 {
            harness.real_time(tasks, 0);
            tasks += 1;
        }
        harness.now += LAUNCH_NS;
        let Some((_, task, _)) = harness.launches.front().copied() else {
            harness.send(Event::Tick);
            continue;
        };
        let is_evicted = harness.evicted.contains(&task);
        harness.evicted.retain(|other| {
            *other != task || harness.launches.iter().filter(|(_, owner, _)| *owner == task).count() > 1
        });
        ran += u64::from(task.0 < 999 && !is_evicted);
        harness.end(task.0, if is_evicted { LaunchEnd::Evicted } else { LaunchEnd::Complete });
    }
    (harness.scheduler.counters().best_effort_slices, ran)
}

#[test]
fn best_effort_work_progresses_within_the_bound_and_takes_no_more_than_its_share() {
    const WAIT: u64 = 1_000_000;
    for (policy, queues) in
        ["reset", "reef", "edf", "block-wait"].into_iter().flat_map(|policy| [(policy, 1), (policy, 2)])
    {
        assert_eq!(beside_continuous_load(policy, queues, None, 50 * WAIT).0, 0, "{policy}: no bound was set");
        let (slices, ran) = beside_continuous_load(policy, queues, Some(WAIT), 50 * WAIT);
        assert!((46..=50).contains(&slices), "{policy}: {slices} slices in 50 waits");
        let at_most = slices * (WAIT / BEST_EFFORT_SLICE_DIVISOR / 1000 + 2);
        assert!(ran >= slices && ran <= at_most, "{policy}: {ran} launches in {slices} slices");
    }
}

#[test]
fn co_scheduled_blocks_of_a_task_stay_in_one_queue() {
    let mut harness = Harness::new("reef", 4, None);
    harness.has_profiles = true;
    harness.real_time(0, 5);
    harness.arrive(9, Class::BestEffort, 0, None);
    harness.end(0, LaunchEnd::Complete);
    assert_eq!(harness.pads, [(9, 0, 0)], "beside the third launch");
    harness.real_time(1, 1);
    assert_eq!(harness.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
    assert_eq!(harness.pads.len(), 1, "its next blocks would not be ordered behind those in another queue");
    harness.end_all(&[0, 0], LaunchEnd::Evicted);
    harness.end(1, LaunchEnd::Complete);
    assert_eq!(harness.pads[1..], [(9, 1, 1)], "none of its blocks is in flight any more");
}

#[test]
fn a_task_that_only_pads_shares_its_queue_with_no_other() {
    for has_slices in [false, true] {
        let mut harness = Harness::new("reef", 2, has_slices.then_some(1_000_000));
        harness.has_profiles = true;
        harness.real_time(0, 5);
        harness.arrive(8, Class::BestEffort, 0, None);
        harness.arrive(9, Class::BestEffort, 0, None);
        assert_eq!(harness.scheduler.waiting(Class::BestEffort), 1, "the other one has the only queue");
    }
}

#[test]
fn a_task_with_a_slice_waits_for_its_co_scheduled_blocks() {
    const WAIT: u64 = 1_000_000;
    let mut harness = Harness::new("reef", 4, Some(WAIT));
    harness.has_profiles = true;
    harness.real_time(0, 5);
    harness.arrive(9, Class::BestEffort, 0, None);
    harness.end(0, LaunchEnd::Complete);
    assert_eq!((harness.pads.as_slice(), harness.on_device()), ([(9, 0, 0)].as_slice(), vec![(0, 0), (0, 0)]));
    harness.now += 2 * WAIT;
    harness.send(Event::Tick);
    assert!(harness.scheduler.slice(LaneId::DEFAULT).is_some(), "it made no progress for too long");
    assert_eq!(
        harness.on_device(),
        [(0, 0), (0, 0)],
        "its second step may read what the first one has not written yet"
    );
    harness.end_all(&[0, 0], LaunchEnd::Complete);
    assert!(harness.on_device().iter().any(|(task, _)| *task == 9), "{:?}", harness.on_device());
}

#[test]
fn the_scheduler_reports_its_mode_and_ending_tasks() {
    let mut harness = Harness::new("reset", 2, None);
    assert!(!harness.scheduler.is_in_real_time_mode());
    harness.real_time(0, 5);
    assert!(harness.scheduler.is_in_real_time_mode() && !harness.scheduler.is_ending(TaskId(0)));
    harness.end_all(&[0, 0, 0], LaunchEnd::Complete);
    assert!(!harness.scheduler.is_in_real_time_mode() && !harness.scheduler.is_ending(TaskId(0)), "it is finished");

    let steps = Arc::clone(&harness.best_effort_steps);
    let spec = TaskSpec {
        task: TaskId(1),
        lane: LaneId::DEFAULT,
        client: ClientId(0),
        class: Class::BestEffort,
        priority: 0,
        steps,
        deadline: None,
        due: None,
        profiles: None,
        forks: None,
        ready: false,
    };
    harness.send(Event::TaskArrived(spec));
    assert_eq!(harness.scheduler.waiting(Class::BestEffort), 1, "it is not ready yet");
    harness.send(Event::TaskReady { task: TaskId(1) });
    assert_eq!((harness.scheduler.waiting(Class::BestEffort), harness.launches.len()), (0, 2));
    harness.expected = Outcome::Cancelled;
    harness.send(Event::CancelTask { task: TaskId(1) });
    assert!(harness.scheduler.is_ending(TaskId(1)), "its launches are still in flight");
    harness.end_all(&[1, 1], LaunchEnd::Evicted);
    assert_eq!((harness.scheduler.is_ending(TaskId(1)), harness.scheduler.task_count()), (false, 0));
}
