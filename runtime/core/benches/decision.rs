//! The time of one scheduling decision with 32 device queues, all busy (budget: 1 µs).
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

    fn arrive(&mut self, class: Class, steps: usize) {
        let task = TaskId(self.tasks);
        self.tasks += 1;
        self.tell(Event::TaskArrived(TaskSpec {
            task,
            class,
            steps: Arc::from(vec![Step::Cuttable; steps]),
            deadline: None,
            profiles: None,
            ready: true,
        }));
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

fn main() {
    let policy = policy_by_name(POLICY_DEFAULT).expect("the default policy");
    let preempt_level = PreemptLevel::Deactivate;
    let config =
        SchedulerConfig { policy, queues: QUEUES, queue_capacity: 4, preempt_level, can_abort: true, compute_units: 60, perturb: None };
    let mut driver = Driver { scheduler: Scheduler::new(&config), actions: Vec::new(), in_flight: VecDeque::new(), now: 0, tasks: 0 };
    for _ in 0..2 * QUEUES {
        driver.arrive(Class::BestEffort, STEPS);
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
