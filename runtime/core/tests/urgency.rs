//! Who goes before whom, told event by event: real-time tasks among themselves, and best-effort
//! tasks that would starve.

use atoll_core::{
    Action, BEST_EFFORT_SLICE_DIVISOR, Class, ClientId, DeviceScheduler, Event, LaneId, LaunchEnd, LaunchId,
    LaunchProfile, Nanos, Outcome, PreemptLevel, QueueId, SchedulerConfig, Step, TaskId, TaskSpec, policy_by_name,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// A scheduler and what it put on the device.
struct Desk {
    scheduler: DeviceScheduler,
    now: u64,
    best_effort_steps: Arc<[Step]>,
    launches: VecDeque<(LaunchId, TaskId, QueueId)>,
    /// Whose blocks of which step go along with launches of which task, where there are profiles.
    pads: Vec<(u64, u32, u64)>,
    has_profiles: bool,
    /// Tasks that were told to leave, in the order in which they were.
    evicted: Vec<TaskId>,
    finished: Vec<TaskId>,
    /// How tasks end.
    expected: Outcome,
}

impl Desk {
    fn new(policy: &str, queues: u32, best_effort_wait_ns_max: Option<u64>) -> Desk {
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
        let best_effort_steps = Arc::from([Step::Cuttable; 10_000]);
        Desk {
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

    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.scheduler.handle(Nanos(self.now), event, &mut actions);
            let mut going_along = Vec::new();
            for action in actions {
                match action {
                    Action::Pad { task, step, .. } => going_along.push((task.0, step)),
                    Action::Prepare { task } => events.push_back(Event::TaskPrepared { task }),
                    Action::Issue { launch, task, queue, .. } => {
                        self.launches.push_back((launch, task, queue));
                        self.pads.extend(going_along.drain(..).map(|(rider, step)| (rider, step, task.0)));
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
            Class::RealTime => Arc::from([Step::Cuttable; 3]),
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
            profiles,
            forks: None,
            ready: true,
        };
        self.tell(Event::TaskArrived(spec));
    }

    fn real_time(&mut self, task: u64, priority: u32) {
        self.arrive(task, Class::RealTime, priority, None);
    }

    /// The oldest launch of a task ends.
    fn end(&mut self, task: u64, end: LaunchEnd) {
        let at = self.launches.iter().position(|(_, owner, _)| owner.0 == task).expect("a launch of the task");
        let (launch, ..) = self.launches.remove(at).expect("it was found");
        self.tell(Event::LaunchEnded { launch, end });
    }

    fn end_all(&mut self, tasks: &[u64], end: LaunchEnd) {
        tasks.iter().for_each(|&task| self.end(task, end));
    }

    /// Whose launches are on the device, and in which queues.
    fn on_device(&self) -> Vec<(u64, u32)> {
        self.launches.iter().map(|(_, task, queue)| (task.0, queue.0)).collect()
    }
}

#[test]
fn a_more_urgent_task_evicts_and_issues_at_once_and_the_other_goes_on_where_it_was() {
    for policy in ["reset", "reef"] {
        let mut desk = Desk::new(policy, 4, None);
        desk.real_time(0, 5);
        desk.real_time(1, 4);
        assert_eq!(desk.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)], "{policy}: not behind what has yet to leave");
        assert_eq!(desk.evicted, [TaskId(0)]);
        desk.real_time(2, 1);
        assert_eq!(
            (desk.evicted.last(), desk.launches.len()),
            (Some(&TaskId(1)), 4),
            "both queues are full of what leaves"
        );
        desk.end(0, LaunchEnd::Complete);
        assert_eq!(desk.on_device(), [(0, 0), (1, 1), (1, 1), (2, 0)], "one launch ran to its end before it knew");
        desk.end(0, LaunchEnd::Evicted);
        desk.end_all(&[1, 1], LaunchEnd::Evicted);
        desk.end_all(&[2, 2, 2], LaunchEnd::Complete);
        assert_eq!(desk.on_device(), [(1, 1), (1, 1)], "the next in line, and in the queue that it had");
        desk.end_all(&[1, 1, 1], LaunchEnd::Complete);
        desk.end_all(&[0, 0], LaunchEnd::Complete);
        assert_eq!(desk.finished, [2, 1, 0].map(TaskId));
    }
}

#[test]
fn nobody_waits_behind_launches_of_a_task_that_is_over() {
    let mut desk = Desk::new("reset", 4, None);
    desk.real_time(0, 5);
    desk.expected = Outcome::Cancelled;
    desk.tell(Event::CancelTask { task: TaskId(0) });
    assert_eq!(desk.evicted, [TaskId(0)], "they leave");
    desk.real_time(1, 5);
    assert_eq!(desk.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
}

#[test]
fn equals_run_one_after_the_other() {
    let mut desk = Desk::new("reset", 8, None);
    desk.real_time(0, 3);
    desk.real_time(1, 3);
    desk.real_time(2, 4);
    assert_eq!(desk.on_device(), [(0, 0), (0, 0)]);
    desk.end(0, LaunchEnd::Complete);
    assert_eq!(desk.on_device(), [(0, 0), (0, 0)]);
    desk.end(0, LaunchEnd::Complete);
    assert_eq!(desk.on_device(), [(0, 0), (1, 0)], "behind the last launch, in the same queue");
    desk.end(1, LaunchEnd::Complete);
    assert_eq!(desk.on_device(), [(0, 0), (1, 0)], "what another executor has may end first");
    assert_eq!(desk.evicted, []);
}

#[test]
fn with_few_queues_real_time_tasks_share_one() {
    let mut desk = Desk::new("reset", 3, None);
    desk.real_time(0, 5);
    desk.real_time(1, 4);
    assert_eq!(desk.on_device(), [(0, 0), (0, 0)]);
    desk.end(0, LaunchEnd::Evicted);
    assert_eq!(desk.on_device(), [(0, 0), (1, 0)]);
}

#[test]
fn the_earliest_deadline_is_the_most_urgent() {
    let mut desk = Desk::new("edf", 4, None);
    desk.arrive(0, Class::RealTime, 0, None);
    desk.arrive(1, Class::RealTime, 9, Some(2_000_000));
    desk.arrive(2, Class::RealTime, 0, Some(3_000_000));
    assert_eq!(desk.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
    assert_eq!(desk.evicted, [TaskId(0)]);
    // Best-effort tasks with deadlines wait for those without, and start in their order.
    desk.arrive(3, Class::BestEffort, 0, Some(1_000_000));
    assert_eq!(desk.launches.len(), 4);
}

#[test]
fn policies_that_wait_evict_nobody() {
    for policy in ["streams", "sequential", "block-wait", "rt-only"] {
        let mut desk = Desk::new(policy, 8, None);
        desk.real_time(0, 5);
        desk.real_time(1, 3);
        desk.real_time(2, 1);
        desk.end_all(&[0, 0], LaunchEnd::Complete);
        assert_eq!(desk.on_device(), [(0, 0), (2, 0)], "{policy}: the more urgent starts first");
        assert_eq!(desk.evicted, [], "{policy}");
    }
}

#[test]
fn best_effort_tasks_are_prepared_when_a_queue_has_come_to_them() {
    let mut desk = Desk::new("streams", 3, None);
    desk.best_effort_steps = Arc::from([Step::Cuttable, Step::Solid]);
    (0..4).for_each(|task| desk.arrive(task, Class::BestEffort, 0, None));
    assert_eq!(desk.on_device(), [(0, 1), (1, 2)]);
    assert_eq!(
        desk.scheduler.waiting(Class::BestEffort),
        2,
        "there is room, but nobody else's launches may be between these two"
    );
    desk.end(1, LaunchEnd::Complete);
    desk.tell(Event::Tick);
    assert_eq!(desk.on_device(), [(0, 1), (1, 2), (2, 2)], "behind the last launch of another");
    assert_eq!(desk.scheduler.waiting(Class::BestEffort), 1);
}

/// Real-time tasks without a pause: how often best-effort work got the device within so many
/// nanoseconds, and how many of its launches ran.
fn beside_continuous_load(policy: &str, queues: u32, best_effort_wait_ns_max: Option<u64>, until: u64) -> (u64, u64) {
    const LAUNCH_NS: u64 = 1000;
    let mut desk = Desk::new(policy, queues, best_effort_wait_ns_max);
    let (mut tasks, mut ran) = (1000, 0);
    desk.real_time(999, 0);
    (0..3).for_each(|task| desk.arrive(task, Class::BestEffort, 0, None));
    while desk.now < until {
        while desk.scheduler.waiting(Class::RealTime) == 0 {
            desk.real_time(tasks, 0);
            tasks += 1;
        }
        desk.now += LAUNCH_NS;
        let Some((_, task, _)) = desk.launches.front().copied() else {
            desk.tell(Event::Tick);
            continue;
        };
        let is_evicted = desk.evicted.contains(&task);
        desk.evicted
            .retain(|other| *other != task || desk.launches.iter().filter(|(_, owner, _)| *owner == task).count() > 1);
        ran += u64::from(task.0 < 999 && !is_evicted);
        desk.end(task.0, if is_evicted { LaunchEnd::Evicted } else { LaunchEnd::Complete });
    }
    (desk.scheduler.counters().best_effort_slices, ran)
}

#[test]
fn best_effort_work_moves_within_the_bound_and_takes_no_more_than_its_share() {
    const WAIT: u64 = 1_000_000;
    for (policy, queues) in
        ["reset", "reef", "edf", "block-wait"].into_iter().flat_map(|policy| [(policy, 1), (policy, 2)])
    {
        assert_eq!(beside_continuous_load(policy, queues, None, 50 * WAIT).0, 0, "{policy}: nobody asked for a bound");
        let (slices, ran) = beside_continuous_load(policy, queues, Some(WAIT), 50 * WAIT);
        assert!((46..=50).contains(&slices), "{policy}: {slices} slices in 50 waits");
        let at_most = slices * (WAIT / BEST_EFFORT_SLICE_DIVISOR / 1000 + 2);
        assert!(ran >= slices && ran <= at_most, "{policy}: {ran} launches in {slices} slices");
    }
}

#[test]
fn blocks_follow_others_only_in_one_queue() {
    let mut desk = Desk::new("reef", 4, None);
    desk.has_profiles = true;
    desk.real_time(0, 5);
    desk.arrive(9, Class::BestEffort, 0, None);
    desk.end(0, LaunchEnd::Complete);
    assert_eq!(desk.pads, [(9, 0, 0)], "beside the third launch");
    desk.real_time(1, 1);
    assert_eq!(desk.on_device(), [(0, 0), (0, 0), (1, 1), (1, 1)]);
    assert_eq!(desk.pads.len(), 1, "its next blocks would not wait for those beside a launch in another queue");
    desk.end_all(&[0, 0], LaunchEnd::Evicted);
    desk.end(1, LaunchEnd::Complete);
    assert_eq!(desk.pads[1..], [(9, 1, 1)], "nothing of it is under way any more");
}

#[test]
fn what_only_pads_shares_its_queue_with_nobody() {
    for has_slices in [false, true] {
        let mut desk = Desk::new("reef", 2, has_slices.then_some(1_000_000));
        desk.has_profiles = true;
        desk.real_time(0, 5);
        desk.arrive(8, Class::BestEffort, 0, None);
        desk.arrive(9, Class::BestEffort, 0, None);
        assert_eq!(desk.scheduler.waiting(Class::BestEffort), 1, "the other one has the only queue");
    }
}

#[test]
fn who_gets_a_slice_waits_for_its_blocks_beside_others() {
    const WAIT: u64 = 1_000_000;
    let mut desk = Desk::new("reef", 4, Some(WAIT));
    desk.has_profiles = true;
    desk.real_time(0, 5);
    desk.arrive(9, Class::BestEffort, 0, None);
    desk.end(0, LaunchEnd::Complete);
    assert_eq!((desk.pads.as_slice(), desk.on_device()), ([(9, 0, 0)].as_slice(), vec![(0, 0), (0, 0)]));
    desk.now += 2 * WAIT;
    desk.tell(Event::Tick);
    assert!(desk.scheduler.slice(LaneId::DEFAULT).is_some(), "it got nowhere for too long");
    assert_eq!(desk.on_device(), [(0, 0), (0, 0)], "its second step may read what the first one has yet to write");
    desk.end_all(&[0, 0], LaunchEnd::Complete);
    assert!(desk.on_device().iter().any(|(task, _)| *task == 9), "{:?}", desk.on_device());
}

#[test]
fn the_scheduler_says_what_it_is_at() {
    let mut desk = Desk::new("reset", 2, None);
    assert!(!desk.scheduler.is_in_real_time_mode());
    desk.real_time(0, 5);
    assert!(desk.scheduler.is_in_real_time_mode() && !desk.scheduler.is_ending(TaskId(0)));
    desk.end_all(&[0, 0, 0], LaunchEnd::Complete);
    assert!(!desk.scheduler.is_in_real_time_mode() && !desk.scheduler.is_ending(TaskId(0)), "it is gone");

    let steps = Arc::clone(&desk.best_effort_steps);
    let spec = TaskSpec {
        task: TaskId(1),
        lane: LaneId::DEFAULT,
        client: ClientId(0),
        class: Class::BestEffort,
        priority: 0,
        steps,
        deadline: None,
        profiles: None,
        forks: None,
        ready: false,
    };
    desk.tell(Event::TaskArrived(spec));
    assert_eq!(desk.scheduler.waiting(Class::BestEffort), 1, "it cannot start yet");
    desk.tell(Event::TaskReady { task: TaskId(1) });
    assert_eq!((desk.scheduler.waiting(Class::BestEffort), desk.launches.len()), (0, 2));
    desk.expected = Outcome::Cancelled;
    desk.tell(Event::CancelTask { task: TaskId(1) });
    assert!(desk.scheduler.is_ending(TaskId(1)), "its launches are still there");
    desk.end_all(&[1, 1], LaunchEnd::Evicted);
    assert_eq!((desk.scheduler.is_ending(TaskId(1)), desk.scheduler.task_count()), (false, 0));
}
