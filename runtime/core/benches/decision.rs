//! The time of one scheduling decision with 32 busy device queues (budget: 1 µs), and of one choice
//! of co-scheduled blocks (budget: 0.4 µs); and of a round of tokens with 64 clients.
//!
//! `cargo bench -p atoll-core --bench decision`

use atoll_core::limits::PADS_MAX;
use atoll_core::padding::Padding;
use atoll_core::tokens::{ShareRequest, ShareSpec, TokenConfig, TokenLedger};
use atoll_core::*;
use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QUEUES: u32 = 32;
/// Steps of a best-effort task: enough that few tasks end during the measurement.
const STEPS: usize = 100_000;
const COMPUTE_UNITS: u32 = 60;

/// A scheduler with a device that completes launches at once.
struct Driver {
    scheduler: DeviceScheduler,
    actions: Vec<Action>,
    in_flight: VecDeque<LaunchId>,
    steps: Arc<[Step]>,
    now: u64,
    tasks: u64,
}

impl Driver {
    fn new(policy: &str) -> Driver {
        let config = SchedulerConfig {
            policy: policy_by_name(policy).expect("a policy"),
            queues: QUEUES,
            paired_queues: false,
            queue_capacity: 4,
            preempt_level: PreemptLevel::Deactivate,
            can_abort: true,
            compute_units: COMPUTE_UNITS,
            best_effort_wait_ns_max: None,
            perturb: None,
        };
        let steps = Arc::from(vec![Step::Preemptible; STEPS]);
        Driver {
            scheduler: DeviceScheduler::new(&config),
            actions: Vec::new(),
            in_flight: VecDeque::new(),
            steps,
            now: 0,
            tasks: 0,
        }
    }

    fn send(&mut self, event: Event) {
        self.now += 1;
        self.scheduler.handle(Nanos(self.now), event, &mut self.actions);
    }

    /// The arrival of a task with these steps, all with one profile, if any.
    fn task(&mut self, class: Class, priority: u32, steps: Arc<[Step]>, profile: Option<&LaunchProfile>) -> Event {
        let task = TaskId(self.tasks);
        self.tasks += 1;
        let profiles = profile.map(|profile| Arc::from(vec![Some(profile.clone()); steps.len()]));
        Event::TaskArrived(TaskSpec {
            task,
            lane: LaneId::DEFAULT,
            client: ClientId(0),
            class,
            priority,
            steps,
            deadline: None,
            due: None,
            profiles,
            forks: None,
            ready: true,
        })
    }

    fn arrive_best_effort(&mut self, profile: Option<&LaunchProfile>) {
        let arrival = self.task(Class::BestEffort, 0, Arc::clone(&self.steps), profile);
        self.send(arrival);
        self.act();
    }

    fn act(&mut self) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Prepare { task } => self.send(Event::TaskPrepared { task }),
                    Action::Issue { launch, .. } => self.in_flight.push_back(launch),
                    _ => {}
                }
            }
        }
    }

    fn end(&mut self, launch: LaunchId, end: LaunchEnd) {
        self.send(Event::LaunchEnded { launch, end });
        self.act();
    }

    /// The time to handle the arrival of a task that evicts others. Afterwards the others are
    /// evicted, the task runs, and they continue.
    fn preempt(&mut self, priority: u32) -> Duration {
        let evicted: Vec<LaunchId> = self.in_flight.drain(..).collect();
        let arrival = self.task(Class::RealTime, priority, Arc::from([Step::Preemptible]), None);
        let begin = Instant::now();
        self.send(arrival);
        let time = begin.elapsed();
        self.act();
        evicted.into_iter().for_each(|launch| self.end(launch, LaunchEnd::Evicted));
        let launch = self.in_flight.pop_front().expect("the launch of the task");
        self.end(launch, LaunchEnd::Complete);
        time
    }
}

fn decide(criterion: &mut Criterion) {
    let mut driver = Driver::new(POLICY_DEFAULT);
    (0..2 * QUEUES).for_each(|_| driver.arrive_best_effort(None));
    criterion.bench_function("completion to next launch, 32 queues", |bencher| {
        bencher.iter(|| {
            let launch = driver.in_flight.pop_front().expect("all queues are busy");
            driver.end(launch, LaunchEnd::Complete);
            if driver.scheduler.waiting(Class::BestEffort) == 0 {
                driver.arrive_best_effort(None);
            }
        });
    });
    let mut driver = Driver::new(POLICY_DEFAULT);
    (0..2 * QUEUES).for_each(|_| driver.arrive_best_effort(None));
    criterion.bench_function("real-time arrival that evicts 30 best-effort tasks", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| driver.preempt(0)).sum());
    });
    let mut driver = Driver::new(POLICY_DEFAULT);
    let less_urgent = driver.task(Class::RealTime, 1, Arc::clone(&driver.steps), None);
    driver.send(less_urgent);
    (0..2 * QUEUES).for_each(|_| driver.arrive_best_effort(None));
    criterion.bench_function("real-time arrival that evicts a real-time task, 30 best-effort tasks wait", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| driver.preempt(0)).sum());
    });
}

fn pad(criterion: &mut Criterion) {
    let profile = |blocks, wave_ns: &[u64]| LaunchProfile::new(blocks, wave_ns);
    let (launch, other) = (profile(20, &[100_000, 120_000]), profile(1_000, &[60_000, 70_000]));
    criterion.bench_function("padding choice", |bencher| {
        bencher.iter(|| {
            let mut padding = Padding::of(black_box(&launch), COMPUTE_UNITS);
            (0..PADS_MAX).filter_map(|_| padding.take(black_box(&other), 990)).count()
        });
    });
    for (name, profile) in [("alone", None), ("padded", Some(&launch))] {
        let mut driver = Driver::new("reef");
        (1..QUEUES).for_each(|_| driver.arrive_best_effort(Some(&LaunchProfile { blocks: u32::MAX, ..other.clone() })));
        let evicted: Vec<LaunchId> = driver.in_flight.drain(..).collect();
        let next = |driver: &mut Driver| {
            let arrival = driver.task(Class::RealTime, 0, Arc::clone(&driver.steps), profile);
            driver.send(arrival);
            driver.act();
        };
        next(&mut driver);
        evicted.into_iter().for_each(|launch| driver.end(launch, LaunchEnd::Evicted));
        criterion.bench_function(&format!("completion to next real-time launch, {name}, 30 candidates"), |bencher| {
            bencher.iter(|| {
                let launch = driver.in_flight.pop_front().expect("the real-time queue is busy");
                driver.end(launch, LaunchEnd::Complete);
                // Without a pause, in which best-effort tasks would issue launches of their own.
                if driver.scheduler.waiting(Class::RealTime) == 0 {
                    next(&mut driver);
                }
            });
        });
        let counters = driver.scheduler.counters();
        assert_eq!(counters.padded_launches > counters.issued_launches / 2, profile.is_some(), "{counters:?}");
    }
}

const CLIENTS: u32 = 64;

/// Rounds of tokens while all clients want one: a token ends, and the next one is given.
fn give_tokens(criterion: &mut Criterion) {
    for (name, partition) in [("one at a time", 100.0), ("four at a time", 25.0)] {
        let mut ledger = TokenLedger::new(TokenConfig::for_device(4_000));
        let share = ShareRequest { sm_partition: partition, quota_request: 0.015, quota_limit: 1.0, group: 0 };
        let share = ShareSpec::new(&share).expect("a valid share");
        (0..CLIENTS).for_each(|client| ledger.set(Nanos(0), ClientId(client), share).expect("the lane honours it"));
        let (mut now, mut recalled) = (Nanos(0), Vec::new());
        criterion.bench_function(&format!("round of tokens, {CLIENTS} clients, {name}"), |bencher| {
            bencher.iter(|| {
                ledger.begin_wants();
                (0..CLIENTS).for_each(|client| ledger.want(ClientId(client), Class::BestEffort));
                black_box(ledger.grant(now, &mut recalled));
                recalled.clear();
                now = ledger.next_grant().expect("a token expires");
            });
        });
        criterion.bench_function(&format!("decision between rounds, {CLIENTS} clients, {name}"), |bencher| {
            bencher.iter(|| {
                ledger.begin_wants();
                (0..CLIENTS).for_each(|client| ledger.want(ClientId(client), Class::BestEffort));
                black_box(ledger.grant(Nanos(now.0 - 1), &mut recalled))
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = decide, pad, give_tokens
}
criterion_main!(benches);
