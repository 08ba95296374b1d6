//! Routing of requests to instances: with numbers computed by hand, and in random runs with a model
//! of instances with quotas, where it is compared with round robin.
//!
//! A failure prints its seed; `ATOLL_SEED=7` runs it alone.

use atoll_core::rng::Rng;
use atoll_core::routing::{Choice, Computed, PERIOD_NS, Router, Urgency};
use atoll_core::tokens::Ppm;
use atoll_core::{Class, DeviceId, Nanos};
use std::collections::VecDeque;

const WINDOW: u64 = 40_000_000;
const MS: u64 = 1_000_000;
/// A request without a deadline.
const ANY: Urgency = Urgency { class: Class::BestEffort, priority: 0, deadline: None };

fn percent(percent: u32) -> Ppm {
    Ppm::of_percent(percent)
}

/// A request that was computed on the first device.
fn computed(compute_ns: u64, batch: u32) -> Option<Computed> {
    Some(Computed { device: DeviceId(0), compute_ns, batch })
}

/// A router with these instances. Each has a limit, and the service time of a request that ended
/// long ago.
fn router(instances: &[(u32, u64)]) -> Router<usize> {
    let mut router = Router::new(WINDOW);
    for (number, &(limit, service)) in instances.iter().enumerate() {
        router.set(number, percent(limit), None);
        router.begin(&number, ANY);
        router.end(Nanos(service), &number, &ANY, computed(service, 1));
    }
    router
}

fn chosen(router: &Router<usize>, at_ms: u64) -> (usize, u64) {
    let Choice { instance, finish, .. } = router.choose(Nanos(at_ms * MS), &ANY, |_| true).expect("an instance");
    (instance, finish.0)
}

#[test]
fn the_earliest_finish_wins() {
    let mut faster = router(&[(100, 4 * MS), (100, 10 * MS)]);
    assert_eq!(chosen(&faster, 400), (0, 404 * MS));
    faster.begin(&0, ANY);
    assert_eq!(chosen(&faster, 400), (0, 408 * MS), "two requests of 4 ms end before one of 10 ms");
    faster.begin(&0, ANY);
    assert_eq!(chosen(&faster, 400), (1, 410 * MS));
    assert_eq!(faster.choose(Nanos(400 * MS), &ANY, |instance| *instance == 0).map(|choice| choice.finish.0), {
        Some(412 * MS)
    });
    assert_eq!(faster.choose(Nanos(0), &ANY, |_| false), None);
}

/// A best-effort request with a deadline.
fn until(deadline: u64) -> Urgency {
    Urgency { deadline: Some(Nanos(deadline)), ..ANY }
}

fn is_late(router: &Router<usize>, at: u64, request: Urgency) -> bool {
    router.choose(Nanos(at), &request, |_| true).expect("an instance").is_late
}

#[test]
fn a_request_that_no_instance_can_finish_in_time_is_late() {
    let at = 400 * MS;
    let mut one = router(&[(100, 4 * MS)]);
    assert!(!is_late(&one, at, until(at + 4 * MS)) && is_late(&one, at, until(at + 4 * MS - 1)));
    // Of three that run before it, one may be about to end.
    (0..3).for_each(|_| one.begin(&0, until(at + MS)));
    assert!(!is_late(&one, at, until(at + 12 * MS)) && is_late(&one, at, until(at + 12 * MS - 1)));
    // Another instance has time for it.
    one.set(1, percent(100), None);
    one.begin(&1, ANY);
    one.end(Nanos(at), &1, &ANY, computed(8 * MS, 1));
    assert!(!is_late(&one, at, until(at + 8 * MS)) && is_late(&one, at, until(at + 8 * MS - 1)));
    // Requests of which it is not sure that they run before it do not count.
    let mut queue = router(&[(100, 4 * MS)]);
    for other in [ANY, until(at + 20 * MS), Urgency { priority: 7, ..until(at) }] {
        (0..9).for_each(|_| queue.begin(&0, other));
    }
    assert!(!is_late(&queue, at, until(at + 4 * MS)));
    let real_time = Urgency { class: Class::RealTime, ..until(at + 4 * MS) };
    (0..9).for_each(|_| queue.begin(&0, until(at)));
    assert!(is_late(&queue, at, until(at + 4 * MS)) && !is_late(&queue, at, real_time), "it overtakes them");
    // A limit of 4 ms in each window: the rest of 6 ms runs in the next one, but not of real-time
    // work.
    let small = router(&[(10, 6 * MS)]);
    assert!(is_late(&small, at, until(at + 42 * MS - 1)) && !is_late(&small, at, until(at + 42 * MS)));
    assert!(!is_late(&small, at, Urgency { class: Class::RealTime, ..until(at + 6 * MS) }));
}

#[test]
fn a_request_is_not_late_by_what_is_not_known() {
    let old = router(&[(100, 4 * MS)]);
    assert!(is_late(&old, PERIOD_NS, until(PERIOD_NS)), "measured in the period before");
    assert!(!is_late(&old, 2 * PERIOD_NS, until(2 * PERIOD_NS)), "it has to be measured again");
    let mut new = Router::new(WINDOW);
    new.set(0, percent(100), None);
    assert!(!is_late(&new, 0, until(1)));
    // The shortest request counts, not the last one.
    let mut mixed = router(&[(100, 4 * MS)]);
    mixed.begin(&0, ANY);
    mixed.end(Nanos(400 * MS), &0, &ANY, computed(80 * MS, 1));
    assert!(!is_late(&mixed, 400 * MS, until(404 * MS)));
}

#[test]
fn instances_that_keep_the_deadline_and_their_target_come_first() {
    let mut router = router(&[(100, 4 * MS), (100, 10 * MS)]);
    router.set(0, percent(100), Some(5 * MS));
    assert_eq!(chosen(&router, 400), (0, 404 * MS));
    router.begin(&0, ANY);
    assert_eq!(chosen(&router, 400), (1, 410 * MS), "the first one would take 8 ms, and has 5 ms");
    let deadline = router.choose(Nanos(400 * MS), &until(409 * MS), |_| true).expect("an instance");
    assert_eq!(deadline.instance, 0, "the deadline of the request counts more");
    router.set(1, percent(100), Some(9 * MS));
    assert_eq!(chosen(&router, 400), (0, 408 * MS), "both miss their targets");
    router.set(0, percent(100), None);
    assert_eq!(chosen(&router, 400), (0, 408 * MS), "no target");
}

#[test]
fn requests_in_flight_are_divided_among_the_devices_that_serve_them() {
    let mut both = router(&[(100, 8 * MS)]);
    both.begin(&0, ANY);
    both.end(Nanos(20 * MS), &0, &ANY, Some(Computed { device: DeviceId(1), compute_ns: 8 * MS, batch: 1 }));
    both.begin(&0, ANY);
    assert_eq!(chosen(&both, 400), (0, 408 * MS), "one of the devices is free");
    both.begin(&0, ANY);
    assert_eq!(chosen(&both, 400), (0, 416 * MS));
}

#[test]
fn what_a_limit_leaves_of_the_window_counts() {
    // 10 % of a window are 4 ms. Request 2 of 3 ms: 1 ms in this window and 2 ms in the next one.
    let mut small = router(&[(10, 3 * MS)]);
    assert_eq!(chosen(&small, 400), (0, 403 * MS));
    small.begin(&0, ANY);
    assert_eq!(chosen(&small, 400), (0, 442 * MS));
    small.end(Nanos(403 * MS), &0, &ANY, computed(3 * MS, 1));
    assert_eq!(chosen(&small, 403), (0, 442 * MS), "1 ms is left of the window");
    assert_eq!(chosen(&small, 440), (0, 443 * MS), "a new window");
    // Ten requests: 30 ms of work, 4 ms of each window.
    let mut long = router(&[(10, 3 * MS)]);
    (0..9).for_each(|_| long.begin(&0, ANY));
    assert_eq!(chosen(&long, 400), (0, 682 * MS));
    // A slow instance with quota left is better than a fast one that has used up its quota.
    let mut used = router(&[(10, 4 * MS), (100, 20 * MS)]);
    used.begin(&0, ANY);
    used.end(Nanos(404 * MS), &0, &ANY, computed(4 * MS, 1));
    assert_eq!(chosen(&used, 405), (1, 425 * MS));
    assert_eq!(chosen(&used, 438), (0, 444 * MS), "the next window is near");
}

#[test]
fn instances_that_come_and_go_are_measured() {
    let mut router = router(&[(100, 8 * MS)]);
    router.begin(&0, ANY);
    router.set(1, percent(100), None);
    assert_eq!(chosen(&router, 400).0, 1, "it counts as fast as the others until it is measured");
    router.begin(&1, ANY);
    router.end(Nanos(500 * MS), &1, &ANY, computed(50 * MS, 1));
    assert_eq!(chosen(&router, 600).0, 0);
    assert_eq!(router.standing(&0).map(|standing| (standing.in_flight, standing.throughput)), Some((1, Some(125_000))));
    router.remove(&0);
    router.end(Nanos(600 * MS), &0, &ANY, computed(1, 1));
    assert_eq!((chosen(&router, 700).0, router.standing(&0)), (1, None));
    router.begin(&1, ANY);
    router.end(Nanos(700 * MS), &1, &ANY, None);
    assert_eq!(router.standing(&1).map(|standing| standing.in_flight), Some(0), "a failed request ends, too");
    router.remove(&1);
    assert!(router.is_empty());
}

#[test]
fn requests_of_a_batch_share_its_time_and_failures_change_no_measurement() {
    let mut router = router(&[(100, 8 * MS)]);
    let service = |router: &Router<usize>| router.standing(&0).and_then(|standing| standing.service_ns);
    for round in 1..50 {
        (0..16).for_each(|_| router.begin(&0, ANY));
        // Each request reports the time of the whole batch, a microsecond after the one before.
        (0..16).for_each(|at| router.end(Nanos(round * 100 * MS + at * 1_000), &0, &ANY, computed(32 * MS, 16)));
    }
    let measured = service(&router).expect("measured");
    assert!((2 * MS..2 * MS + 10_000).contains(&measured), "{measured} ns of 32 ms for 16 requests");
    assert_eq!(router.standing(&0).map(|standing| standing.batch), Some(16));
    // Cached responses and failures compute nothing.
    for at in 1..100 {
        router.begin(&0, ANY);
        router.end(Nanos(5_000 * MS + at * MS), &0, &ANY, None);
    }
    router.begin(&0, ANY);
    router.end(Nanos(5_100 * MS), &0, &ANY, computed(2 * MS, 1));
    assert_eq!(service(&router).expect("measured").abs_diff(2 * MS) / 10_000, 0, "what failed is no work");
}

#[test]
fn devices_that_work_side_by_side_are_measured_apart() {
    let mut router = router(&[(100, 8 * MS)]);
    // Two devices, a request of 8 ms each at the same time: one ends every 4 ms.
    for at in 1..100 {
        router.begin(&0, ANY);
        let on = Computed { device: DeviceId((at % 2) as u16), compute_ns: 8 * MS, batch: 1 };
        router.end(Nanos(1_000 * MS + at * 4 * MS), &0, &ANY, Some(on));
    }
    assert_eq!(router.standing(&0).and_then(|standing| standing.service_ns), Some(8 * MS));
}

/// An instance that works on one request at a time, within its quota.
struct Instance {
    limit: Ppm,
    service: u64,
    queue: VecDeque<u64>,
    /// When all its work so far will be done.
    busy_until: u64,
    begun: u64,
}

impl Instance {
    /// When an arriving request ends: its service time, spread over windows by the limit.
    fn serve(&mut self, now: u64) -> u64 {
        let mut at = self.busy_until.max(now);
        let mut left = self.service;
        let begin = at;
        while left > 0 {
            let (start, allowance) = (at - at % WINDOW, self.limit.of(WINDOW));
            // It runs at the start of each window.
            let end = start + allowance;
            if at >= end {
                at = start + WINDOW;
                continue;
            }
            let part = left.min(end - at);
            (at, left) = (at + part, left - part);
        }
        (self.busy_until, self.begun) = (at, begin);
        at
    }
}

/// The mean latency of requests that arrive at random.
fn run(seed: u64, routed: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut instances: Vec<Instance> = (0..2 + rng.below(4))
        .map(|_| Instance {
            limit: percent(10 + 10 * rng.below(10) as u32),
            service: MS * (1 + rng.below(12)),
            queue: VecDeque::new(),
            busy_until: 0,
            begun: 0,
        })
        .collect();
    let mut router = Router::new(WINDOW);
    for (number, instance) in instances.iter().enumerate() {
        router.set(number, instance.limit, None);
    }
    // The load is half of the instances' capacity.
    let rate: f64 = instances.iter().map(|i| f64::from(i.limit.millionths()) / 1e6 / i.service as f64).sum();
    let gap = (2.0 / rate) as u64;
    let (mut now, mut sum, count) = (0, 0, 600);
    let mut ends: Vec<(u64, usize, u64)> = Vec::new();
    for request in 0..count {
        now += rng.below(2 * gap);
        ends.sort_unstable();
        let done = ends.partition_point(|(end, _, _)| *end <= now);
        for (end, instance, compute) in ends.drain(..done) {
            router.end(Nanos(end), &instance, &ANY, computed(compute, 1));
        }
        let at = match routed {
            true => router.choose(Nanos(now), &ANY, |_| true).expect("an instance").instance,
            false => request % instances.len(),
        };
        router.begin(&at, ANY);
        let end = instances[at].serve(now);
        instances[at].queue.push_back(end);
        ends.push((end, at, end - instances[at].begun));
        sum += end - now;
    }
    sum / count as u64
}

#[test]
fn routed_requests_end_sooner_than_requests_in_turn() {
    let only: Option<u64> = std::env::var("ATOLL_SEED").ok().map(|seed| seed.parse().expect("ATOLL_SEED is a number"));
    let seeds = only.map_or(0..60, |seed| seed..seed + 1);
    let (mut better, mut all, mut factor) = (0, 0, 0.0);
    for seed in seeds {
        let (routed, in_turn) = (run(seed, true), run(seed, false));
        assert!(routed as f64 <= 1.15 * in_turn as f64, "seed {seed}: {routed} ns routed, {in_turn} ns in turn");
        (better, all, factor) =
            (better + usize::from(routed < in_turn), all + 1, factor + in_turn as f64 / routed as f64);
        assert_eq!(run(seed, true), routed, "seed {seed}: the same requests, another result");
    }
    assert!(better * 10 >= all * 9, "better in {better} of {all} runs only");
    let mean = factor / all as f64;
    assert!(mean > 1.0, "in turn takes {mean:.2} times as long on average");
}
