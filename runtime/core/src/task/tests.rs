use super::*;
use std::sync::Arc;

fn running(steps: &[Step]) -> Task {
    let spec = TaskSpec {
        task: TaskId(1),
        lane: crate::ids::LaneId::DEFAULT,
        client: crate::ids::ClientId(0),
        class: Class::BestEffort,
        priority: 0,
        steps: Arc::from(steps),
        deadline: None,
        due: None,
        profiles: None,
        forks: None,
        ready: true,
    };
    let mut queue = crate::host_queue::HostQueue::new(1);
    let mut task = Task::new(spec, queue.push(TaskId(1), crate::ids::ClientId(0), 0).expect("room"));
    task.phase = Phase::Running;
    task
}

#[test]
fn a_raised_task_drains_and_continues_at_the_first_incomplete_step() {
    let mut task = running(&[Step::Preemptible; 5]);
    let old = task.issue(Step::Preemptible);
    for _ in 0..2 {
        task.issue(Step::Preemptible);
    }
    let new = task.raise().expect("three launches are in flight");
    assert!(old.is_raised_by(new));
    assert_eq!(task.raise(), None, "the epoch was raised already");
    assert_eq!(task.ready_step(), None, "nothing is issued behind them");
    assert_eq!(task.launch_ended(0, old, LaunchEnd::Complete), Progress::Continues);
    assert_eq!(task.launch_ended(1, old, LaunchEnd::Evicted), Progress::Continues);
    assert_eq!(task.launch_ended(2, old, LaunchEnd::Evicted), Progress::Continues);
    assert_eq!(task.ready_step(), Some((1, Step::Preemptible)));
    assert_eq!(task.issue(Step::Preemptible), new);
}

#[test]
fn an_impossible_end_counts_as_failed() {
    let issued = |kinds: &[Step]| {
        let mut task = running(kinds);
        let epoch = task.issue(kinds[0]);
        (task, epoch)
    };
    let (mut task, epoch) = issued(&[Step::Preemptible; 2]);
    task.issue(Step::Preemptible);
    task.raise();
    assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Continues);
    assert_eq!(task.launch_ended(1, epoch, LaunchEnd::Complete), Progress::Failed, "it ran on incomplete inputs");
    let (mut task, epoch) = issued(&[Step::Preemptible]);
    assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Failed, "its epoch was not raised");
    let (mut task, epoch) = issued(&[Step::NotPreemptible]);
    task.raise();
    assert_eq!(task.launch_ended(0, epoch, LaunchEnd::Evicted), Progress::Failed, "it cannot exit early");
}

#[test]
fn restartable_launches_run_again_from_the_first_that_may_have_been_evicted() {
    let steps = [
        Step::Preemptible,
        Step::Restartable { restore_point: 0 },
        Step::Restartable { restore_point: 1 },
        Step::Restartable { restore_point: 3 },
    ];
    let mut task = running(&steps);
    let old = task.issue(steps[0]);
    task.issue(steps[1]);
    assert_eq!(task.ready_step(), Some((2, steps[2])), "its restore point is the step before");
    task.issue(steps[2]);
    assert_eq!(task.ready_step(), None, "it overwrites inputs of the two before it");
    assert_eq!(task.launch_ended(0, old, LaunchEnd::Complete), Progress::Continues);
    task.raise().expect("two launches are preemptible");
    assert!(task.may_be_evicted(1, old));
    assert_eq!(task.launch_ended(1, old, LaunchEnd::Complete), Progress::Continues);
    assert_eq!(task.launch_ended(2, old, LaunchEnd::Evicted), Progress::Continues);
    assert_eq!(task.ready_step(), Some((1, steps[1])));
    let new = task.issue(steps[1]);
    assert_eq!(task.launch_ended(1, new, LaunchEnd::Complete), Progress::Continues);
    assert_eq!(
        task.ready_step(),
        Some((2, steps[2])),
        "a launch that ended before the epoch was raised ran to its end"
    );
}

#[test]
fn blocks_co_scheduled_behind_an_aborted_launch_fail_the_task() {
    let with_co_scheduled = |launches: u32| {
        let mut task = running(&[Step::Preemptible; 2]);
        let profile = LaunchProfile::new(4, [1]);
        task.spec.profiles = Some(vec![Some(profile); 2].into());
        for _ in 0..launches {
            task.co_schedule(2);
        }
        task
    };
    let mut task = with_co_scheduled(1);
    assert_eq!(task.co_scheduled_ended(None), Progress::Continues, "no later blocks were in flight");
    assert_eq!(task.padding_candidate().map(|(step, done, _)| (step, done)), Some((0, 0)));
    let mut task = with_co_scheduled(3);
    assert_eq!(task.co_scheduled_ended(Some(2)), Progress::Continues);
    assert_eq!(task.co_scheduled_ended(None), Progress::Failed);
    assert_eq!(task.co_scheduled_ended(Some(2)), Progress::Failed);
    let mut task = with_co_scheduled(4);
    assert_eq!([2, 2, 2].map(|blocks| task.co_scheduled_ended(Some(blocks))), [Progress::Continues; 3]);
    assert_eq!(task.co_scheduled_ended(Some(2)), Progress::Complete);
}

#[test]
fn only_restartable_launches_are_issued_behind_a_restartable_one() {
    for behind in [Step::Preemptible, Step::NotPreemptible, Step::Host] {
        let steps = [Step::Restartable { restore_point: 0 }, behind];
        let mut task = running(&steps);
        let epoch = task.issue(steps[0]);
        assert_eq!(task.ready_step(), None, "{behind:?}");
        task.launch_ended(0, epoch, LaunchEnd::Complete);
        assert_eq!(task.ready_step(), Some((1, behind)));
    }
}

#[test]
fn other_launches_and_host_steps_wait_for_preemptible_launches() {
    let mut task = running(&[Step::Preemptible, Step::NotPreemptible, Step::Preemptible, Step::Host]);
    let epoch = task.issue(Step::Preemptible);
    assert_eq!(task.ready_step(), None, "it would run on incomplete inputs");
    task.launch_ended(0, epoch, LaunchEnd::Complete);
    assert_eq!(task.ready_step(), Some((1, Step::NotPreemptible)));
    task.issue(Step::NotPreemptible);
    assert_eq!(task.raise(), None, "it is not preemptible");
    assert_eq!(task.ready_step(), Some((2, Step::Preemptible)), "any launch may follow it");
    task.issue(Step::Preemptible);
    assert_eq!(task.ready_step(), None, "the host waits for both");
    task.launch_ended(1, epoch, LaunchEnd::Complete);
    task.launch_ended(2, epoch, LaunchEnd::Complete);
    assert_eq!(task.ready_step(), Some((3, Step::Host)));
    task.start_host_step();
    assert!(!task.is_complete());
    task.host_step_done(None);
    assert!(task.is_complete());
}

#[test]
fn a_host_step_repeats_or_skips_steps() {
    let steps = [Step::Preemptible, Step::Host, Step::Preemptible, Step::Host, Step::Preemptible];
    let mut task = running(&steps);
    let mut ran = Vec::new();
    let mut repeats = 0;
    while let Some((step, kind)) = task.ready_step() {
        ran.push(step);
        if kind == Step::Host {
            task.start_host_step();
            assert_eq!(task.ready_step(), None, "the next step depends on it");
            let next = match (step, repeats) {
                (1, 0..3) => Some(0),
                (1, _) => None,
                _ => Some(5),
            };
            repeats += u32::from(next == Some(0));
            task.host_step_done(next);
            continue;
        }
        // The launch is evicted once in each iteration.
        let epoch = task.issue(kind);
        let newer = task.raise().expect("a launch is in flight");
        assert_eq!(task.launch_ended(step, epoch, LaunchEnd::Evicted), Progress::Continues);
        assert_eq!((task.ready_step(), task.issue(kind)), (Some((step, kind)), newer));
        assert_eq!(task.launch_ended(step, newer, LaunchEnd::Complete), Progress::Continues);
    }
    assert_eq!(ran, [0, 1, 0, 1, 0, 1, 0, 1, 2, 3]);
    assert!(task.is_complete(), "the last step was skipped");
}

#[test]
#[should_panic(expected = "past a fork or its end")]
fn a_jump_does_not_cross_a_fork() {
    let mut task = running(&[Step::Preemptible, Step::Preemptible, Step::Host]);
    task.spec.forks = Some(Arc::from([Fork::new([vec![0], vec![1]])]));
    (task.completed, task.next) = (2, 2);
    task.start_host_step();
    task.host_step_done(Some(0));
}
