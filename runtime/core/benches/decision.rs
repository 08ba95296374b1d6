//! The time of one scheduling decision with 32 device queues, all busy (budget: 1 µs), and of one choice of what pads a launch (budget: 0.4 µs).
//!
//! `cargo bench -p atoll-core --bench decision`

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use atoll_core::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QUEUES: u32 = 32;
const STEPS: usize = 10_000;
const DECISIONS: u32 = 200_000;
const ARRIVALS: u32 = 1000;
const COMPUTE_UNITS: u32 = 60;

/// A scheduler that is driven by a device which completes launches at once.
struct Driver {
    scheduler: Scheduler,
    actions: Vec<Action>,
    in_flight: VecDeque<LaunchId>,
    now: u64,
    tasks: u64,
}

impl Driver {
    fn tell(&mut self, event: Event) {
        self.now += 1;
        self.scheduler.handle(Nanos(self.now), event, &mut self.actions);
    }

    /// A task arrives; all of its launches have this profile, if any.
    fn arrive(&mut self, class: Class, steps: usize, profile: Option<&LaunchProfile>) {
        let task = TaskId(self.tasks);
        self.tasks += 1;
        let profiles = profile.map(|profile| Arc::from(vec![Some(profile.clone()); steps]));
        let steps = Arc::from(vec![Step::Cuttable; steps]);
        self.tell(Event::TaskArrived(TaskSpec { task, class, priority: 0, steps, deadline: None, profiles, ready: true }));
        self.act();
    }

    fn act(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Prepare { task } => self.tell(Event::TaskPrepared { task }),
                    Action::Issue { launch, .. } => self.in_flight.push_back(launch),
                    _ => {}
                }
            }
        }
    }
}

fn driver(policy: &str) -> Driver {
    let policy = policy_by_name(policy).expect("a policy");
    let preempt_level = PreemptLevel::Deactivate;
    let config = SchedulerConfig {
        policy,
        queues: QUEUES,
        queue_capacity: 4,
        preempt_level,
        can_abort: true,
        compute_units: COMPUTE_UNITS,
        best_effort_wait_ns_max: None,
        perturb: None,
    };
    Driver { scheduler: Scheduler::new(&config), actions: Vec::new(), in_flight: VecDeque::new(), now: 0, tasks: 0 }
}

fn main() {
    decide();
    pad();
}

/// A launch beside which blocks of others run, found among best-effort tasks in all queues, against one that runs alone.
fn pad() {
    let profile = |blocks, wave_ns: &[u64]| LaunchProfile::new(blocks, wave_ns);
    let (launch, others) = (profile(20, &[100_000, 120_000]), profile(u32::MAX, &[60_000, 70_000]));
    let [alone, padded] = [None, Some(&launch)].map(|launch| {
        let mut driver = driver("reef");
        for _ in 1..QUEUES {
            driver.arrive(Class::BestEffort, STEPS, Some(&others));
        }
        let evicted: Vec<LaunchId> = driver.in_flight.drain(..).collect();
        driver.arrive(Class::RealTime, DECISIONS as usize, launch);
        evicted.into_iter().for_each(|launch| driver.tell(Event::LaunchEnded { launch, end: LaunchEnd::Evicted }));
        let begin = Instant::now();
        for _ in 0..DECISIONS - 10 {
            let launch = driver.in_flight.pop_front().expect("the real-time queue is busy");
            driver.tell(Event::LaunchEnded { launch, end: LaunchEnd::Complete });
            driver.act();
        }
        let counters = driver.scheduler.counters();
        assert_eq!(counters.padded_launches > u64::from(DECISIONS) / 2, launch.is_some(), "{counters:?}");
        begin.elapsed() / DECISIONS
    });
    println!(
        "completion to next real-time launch, {} candidates: {} ns alone, {} ns padded",
        QUEUES - 1,
        alone.as_nanos(),
        padded.as_nanos()
    );
}

fn decide() {
    let mut driver = driver(POLICY_DEFAULT);
    for _ in 0..2 * QUEUES {
        driver.arrive(Class::BestEffort, STEPS, None);
    }
    let begin = Instant::now();
    for _ in 0..DECISIONS {
        let launch = driver.in_flight.pop_front().expect("all queues are busy");
        driver.tell(Event::LaunchEnded { launch, end: LaunchEnd::Complete });
        driver.act();
    }
    println!("completion to next launch, {QUEUES} queues: {} ns", begin.elapsed().as_nanos() / u128::from(DECISIONS));
    let mut arrivals = Duration::ZERO;
    for _ in 0..ARRIVALS {
        let evicted: Vec<LaunchId> = driver.in_flight.drain(..).collect();
        let spec = TaskSpec {
            profiles: None,
            task: TaskId(driver.tasks),
            priority: 0,
            class: Class::RealTime,
            steps: Arc::from([Step::Cuttable]),
            deadline: None,
            ready: true,
        };
        driver.tasks += 1;
        let begin = Instant::now();
        driver.tell(Event::TaskArrived(spec));
        arrivals += begin.elapsed();
        driver.act();
        for (launches, end) in [(evicted, LaunchEnd::Evicted), (driver.in_flight.drain(..).collect(), LaunchEnd::Complete)] {
            for launch in launches {
                driver.tell(Event::LaunchEnded { launch, end });
                driver.act();
            }
        }
    }
    println!("real-time arrival that evicts {} tasks: {} ns", QUEUES - 1, arrivals.as_nanos() / u128::from(ARRIVALS));
}
