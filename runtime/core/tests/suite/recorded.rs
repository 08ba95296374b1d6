//! Compares actions with those that the scheduler took before it had lanes: with one lane of all
//! compute units, it takes the same actions for the same events.
//!
//! The lists themselves are not stored, since the driver generates them from a seed. For each list
//! the number of events and a digest of events and actions are stored
//! (`tests/recorded/digests.txt`, written by the scheduler of commit f95a0d3). `ATOLL_RECORD=1`
//! writes the file anew, after an intended change of behaviour only; `ATOLL_SEED=7` prints the list
//! of a seed.

use crate::driver::{Driver, Mix};
use atoll_core::rng::Rng;
use atoll_core::{Action, DeviceScheduler, Event, Nanos, POLICIES, PreemptLevel, SchedulerConfig, Step};
use std::fmt::Write as _;
use std::io::Write as _;

const SEEDS: u64 = 3_000;
/// Ends runs that would not end otherwise, as with a device that never aborts.
const EVENTS_MAX: usize = 2_000;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded/digests.txt");

fn config(seed: u64) -> (SchedulerConfig, Mix) {
    let rng = &mut Rng::new(seed ^ 0xa701);
    let mut below = |count: u64| rng.below(count);
    let config = SchedulerConfig {
        policy: &POLICIES[(seed % POLICIES.len() as u64) as usize],
        queues: [1, 2, 3, 4, 6, 32][below(6) as usize],
        paired_queues: false,
        queue_capacity: 1 + below(5) as u32,
        preempt_level: [
            PreemptLevel::Block,
            PreemptLevel::Deactivate,
            PreemptLevel::Interrupt,
            PreemptLevel::Interrupt,
        ][below(4) as usize],
        can_abort: below(3) > 0,
        compute_units: 1 + below(12) as u32,
        best_effort_wait_ns_max: (below(3) == 0).then(|| 1 + below(400_000)),
        perturb: (below(5) == 0).then(|| below(1 << 20)),
    };
    let mix = Mix { tasks: 10 + below(30), faults: [0, 0, 8, 30][below(4) as usize], cold: below(3) == 0 };
    (config, mix)
}

/// Runs a seed; returns the number of events, and the list of events and actions.
fn play(seed: u64) -> (usize, String) {
    let (config, mix) = config(seed);
    let (mut scheduler, mut driver) = (DeviceScheduler::new(&config), Driver::new(seed, mix));
    let (mut events, mut text, mut actions) = (0, String::new(), Vec::new());
    while !driver.is_done() && events < EVENTS_MAX {
        events += 1;
        let event = driver.next(scheduler.next_wakeup());
        write_event(&mut text, driver.now, &event);
        scheduler.handle(driver.now, event, &mut actions);
        for action in actions.drain(..) {
            write_action(&mut text, &action);
            driver.carry_out(&action);
        }
    }
    (events, text)
}

/// Appends one line for an event. The words are those of the recording; they stay when code is
/// renamed.
fn write_event(text: &mut String, now: Nanos, event: &Event) {
    let line = match event {
        Event::TaskArrived(spec) => {
            let steps: String = spec.steps.iter().map(write_step).collect();
            format!(
                "arrive t{} c{} p{} d{:?} r{} {steps}",
                spec.task.0,
                spec.class as u8,
                spec.priority,
                spec.deadline.map(|at| at.0),
                spec.ready
            )
        }
        Event::TaskReady { task } => format!("ready t{}", task.0),
        Event::TaskUnready { task } => format!("unready t{}", task.0),
        Event::TaskPrepared { task } => format!("prepared t{}", task.0),
        Event::TaskFailed { task } => format!("failed t{}", task.0),
        Event::LaunchEnded { launch, end } => format!("ended l{} e{}", launch.0, *end as u8),
        Event::HostStepDone { task, .. } => format!("host t{}", task.0),
        Event::CancelTask { task } => format!("cancel t{}", task.0),
        Event::DeviceLost => "lost".to_owned(),
        Event::Tick => "tick".to_owned(),
    };
    writeln!(text, "{} {line}", now.0).expect("memory");
}

fn write_step(step: &Step) -> String {
    match step {
        Step::Preemptible => "p".to_owned(),
        Step::Restartable { restore_point } => format!("r{restore_point}"),
        Step::NotPreemptible => "s".to_owned(),
        Step::Host => "h".to_owned(),
    }
}

fn write_action(text: &mut String, action: &Action) {
    let line = match *action {
        Action::RaiseEpoch { task, epoch } => format!("raise t{} e{}", task.0, epoch.0),
        Action::Prepare { task } => format!("prepare t{}", task.0),
        Action::Pad { task, step, first, shape, epoch } => {
            let (blocks, units) = (shape.blocks, shape.compute_units);
            format!("pad t{} s{step} f{first} b{blocks} u{units} a{} e{}", task.0, shape.at_once, epoch.0)
        }
        Action::Issue { launch, task, step, queue, epoch } => {
            format!("issue l{} t{} s{step} q{} e{}", launch.0, task.0, queue.0, epoch.0)
        }
        Action::Abort { launch, queue } => format!("abort l{} q{}", launch.0, queue.0),
        Action::DeclareHung { launch, queue } => format!("hung l{} q{}", launch.0, queue.0),
        Action::RunHostStep { task, step } => format!("host t{} s{step}", task.0),
        Action::CloseLane { lane } => format!("close y{}", lane.0),
        Action::FinishTask { task, outcome, preemptions } => {
            format!("finish t{} o{} n{preemptions}", task.0, outcome as u8)
        }
    };
    writeln!(text, "  {line}").expect("memory");
}

/// FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn one_lane_of_all_compute_units_takes_the_recorded_actions() {
    if let Ok(seed) = std::env::var("ATOLL_SEED") {
        let (_, list) = play(seed.parse().expect("ATOLL_SEED is a number"));
        return std::io::stderr().write_all(list.as_bytes()).expect("standard error takes it");
    }
    let lines = (0..SEEDS).map(|seed| {
        let (events, text) = play(seed);
        format!("{seed} {events} {:016x}", digest(&text))
    });
    if std::env::var_os("ATOLL_RECORD").is_some() {
        let all: Vec<String> = lines.collect();
        return std::fs::write(FILE, all.join("\n") + "\n").expect("the file can be written");
    }
    let recorded = std::fs::read_to_string(FILE).expect("the recording is there");
    assert_eq!(recorded.lines().count() as u64, SEEDS);
    for (now, then) in lines.zip(recorded.lines()) {
        assert_eq!(
            now,
            then,
            "other actions than recorded (seed, events, digest); `ATOLL_SEED={} cargo test -p atoll-core \
             --test suite recorded -- --nocapture` prints the list, to be compared with that of an earlier commit",
            then.split(' ').next().unwrap_or_default()
        );
    }
}
