//! Scaling: the algorithm, bad profiles, the error of the prediction, and a load that steps up and
//! down in simulation.

use atoll_core::Nanos;
use atoll_core::packing::InstanceId;
use atoll_core::rng::Rng;
use atoll_core::scaling::{Autoscaler, Change, Instance, Point, Predictor, Profile, ScalingConfig, scale};
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const SLO: u64 = 69 * MS;

/// A function that saturates at a quarter of the compute units, like ResNet in FaST-GShare's
/// Fig. 8: throughput is linear in the quota, and a request takes longer with less of it.
fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for (partition, whole) in [(6, 20_000), (12, 37_000), (24, 71_000), (50, 74_000), (100, 76_000)] {
        for quota in [20, 40, 60, 80, 100] {
            let throughput = whole * u64::from(quota) / 100;
            // A request alone: its device time, and the time in which its quota is used up.
            let latency_ns = SECOND * 1_000 / whole + (100 - u64::from(quota)) * 400_000;
            points.push(Point { partition, quota, throughput, latency_ns });
        }
    }
    points
}

fn profile() -> Profile {
    Profile::new(points()).expect("a valid profile")
}

fn instances(points: &[Point]) -> Vec<Instance> {
    points.iter().zip(0..).map(|(&point, id)| Instance { id: InstanceId(id), point }).collect()
}

#[test]
fn a_load_is_covered_by_the_most_efficient_point_and_a_small_rest() {
    let profile = profile();
    let efficient = profile.most_efficient(SLO).expect("a point keeps the SLO");
    let cost = |point: &Point| point.throughput as f64 / point.area() as f64;
    let best = profile.points().iter().filter(|point| point.latency_ns <= SLO).map(cost).fold(0.0, f64::max);
    assert!((cost(&efficient) - best).abs() < 1e-9, "{efficient}");
    let change = scale(&profile, &[], 3 * efficient.throughput + 1, SLO).expect("scaled");
    assert_eq!((change.add.len(), &change.add[..3]), (4, &[efficient; 3][..]));
    assert!(change.add[3].throughput < efficient.throughput && change.add[3].latency_ns <= SLO);
    let exact = scale(&profile, &[], 3 * efficient.throughput, SLO).expect("scaled");
    assert_eq!(exact.add, [efficient; 3], "a rest of zero adds nothing");
    assert_eq!(scale(&profile, &instances(&exact.add), 3 * efficient.throughput, SLO), Ok(Change::default()));
}

#[test]
fn instances_go_least_efficient_first_and_larger_ones_than_the_surplus_stay() {
    let point = |partition, quota, throughput| Point { partition, quota, throughput, latency_ns: MS };
    // The least efficient one is larger than the surplus: the paper's loop does not end here.
    let running = instances(&[point(100, 100, 50_000), point(10, 10, 10_000), point(10, 20, 15_000)]);
    let profile = profile();
    let change = scale(&profile, &running, 50_000, SLO).expect("scaled");
    assert_eq!((change.add.len(), change.remove), (0, vec![InstanceId(2), InstanceId(1)]));
    assert_eq!(scale(&profile, &running, 70_000, SLO).expect("scaled"), Change::default());
    assert_eq!(scale(&profile, &running, 0, SLO).expect("scaled").remove.len(), 3);
}

#[test]
fn bad_profiles_and_targets_are_refused_with_the_cause() {
    let refused = |change: &dyn Fn(&mut Vec<Point>)| {
        let mut points = points();
        change(&mut points);
        Profile::new(points).expect_err("refused").to_string()
    };
    assert_eq!(refused(&|points| points.clear()), "a profile of 0 points; 1 to 1024 are possible");
    assert!(
        refused(&|points| points[3].throughput = 0).starts_with("no throughput at 6 % of the compute units × 80 %")
    );
    assert!(refused(&|points| points[3].latency_ns = 0).starts_with("no latency at 6 %"));
    assert!(refused(&|points| points[3].partition = 0).starts_with("a point at 0 %"));
    assert!(refused(&|points| points[3].quota = 130).starts_with("a point at 6 % of the compute units × 130 %"));
    assert!(refused(&|points| points.push(points[0])).starts_with("two points at 6 %"));
    let hole = "no point at 12 % of the compute units × 60 % of the time, where the grid has one; measure it";
    assert_eq!(
        refused(&|points| {
            points.remove(7);
        }),
        hole
    );
    let dip = refused(&|points| points[14].throughput = 30_000);
    assert!(
        dip.starts_with("24 % of the compute units × 100 % of the time (30 requests/s) has over 5 % less"),
        "{dip}"
    );
    let slo = scale(&profile(), &[], 1, MS).expect_err("refused").to_string();
    assert!(slo.starts_with("no point of the profile keeps the SLO of 1000000 ns; the lowest latency is 13"), "{slo}");
    let many = scale(&profile(), &[], u64::MAX / 4, SLO).expect_err("refused").to_string();
    assert!(many.ends_with("instances; a function has at most 1024"), "{many}");
}

/// Requests in an interval of a Poisson process.
fn poisson(rng: &mut Rng, mean: f64) -> u64 {
    let (mut product, mut count) = (1.0, 0);
    loop {
        product *= ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        if product <= (-mean).exp() {
            return count;
        }
        count += 1;
    }
}

/// The mean error of a prediction relative to the mean rate, over intervals of a second.
fn error_of(mut predictor: Predictor, rate: impl Fn(u64) -> f64, from: u64, to: u64) -> f64 {
    let mut rng = Rng::new(11);
    let (mut off, mut sum) = (0.0, 0.0);
    for interval in 0..to {
        let mean = rate(interval);
        if interval >= from {
            off += (predictor.predict() as f64 / 1e3 - mean).abs();
            sum += mean;
        }
        predictor.observe(1_000 * poisson(&mut rng, mean));
    }
    off / sum
}

#[test]
fn predictions_have_the_errors_that_the_decision_states() {
    let day = |interval: u64| 60.0 + 50.0 * ((interval % 600) as f64 / 600.0 * std::f64::consts::TAU).sin();
    let step = |interval: u64| if interval % 200 < 100 { 10.0 } else { 100.0 };
    let errors = [
        ("constant", error_of(Predictor::new(), |_| 50.0, 100, 3_000), 0.06),
        ("ramp", error_of(Predictor::new(), |interval| 10.0 + interval as f64 / 10.0, 100, 1_000), 0.07),
        ("step", error_of(Predictor::new(), step, 400, 3_000), 0.10),
        ("day", error_of(Predictor::new(), day, 3_000, 6_000), 0.08),
        ("day with a season", error_of(Predictor::with_season(60, 10), day, 3_000, 6_000), 0.08),
        ("step with a season", error_of(Predictor::with_season(20, 10), step, 1_000, 3_000), 0.09),
    ];
    for (name, error, bound) in errors {
        assert!(error < bound, "{name}: an error of {error}");
    }
    assert!(errors[5].1 < errors[2].1, "a season that is known helps");
}

#[test]
fn predictions_survive_any_load() {
    let mut predictor = Predictor::with_season(3, 2);
    let mut rng = Rng::new(5);
    for _ in 0..10_000 {
        predictor.observe([0, 1, u64::MAX, 1 << 40][rng.below(4) as usize]);
        assert!(predictor.predict() <= 4 * atoll_core::scaling::RATE_MAX);
    }
}

/// An instance of the simulation: one request after the other, each for the time that its
/// throughput says.
struct Server {
    instance: Instance,
    ready_at: u64,
    busy_until: u64,
    is_leaving: bool,
}

struct Outcome {
    requests: u64,
    misses: u64,
    most: usize,
    at_end: usize,
    changes_at_end: u64,
}

fn config() -> ScalingConfig {
    ScalingConfig {
        slo_ns: SLO,
        interval_ns: 100 * MS,
        headroom_percent: 60,
        cool_down_ns: 5 * SECOND,
        idle_ns: 20 * SECOND,
        cold_start_ns: 50 * MS,
    }
}

/// Runs a load of requests per second for so many seconds, on a pool that suffices.
fn run(rate: impl Fn(u64) -> f64, seconds: u64, seed: u64) -> Outcome {
    let (config, profile, mut rng) = (config(), profile(), Rng::new(seed));
    let mut autoscaler = Autoscaler::new(config, Predictor::new());
    let (mut servers, mut queue): (Vec<Server>, VecDeque<u64>) = (Vec::new(), VecDeque::new());
    let mut outcome = Outcome { requests: 0, misses: 0, most: 0, at_end: 0, changes_at_end: 0 };
    let (mut arrivals, mut next_id) = (0, 0);
    for ms in 0..seconds * 1_000 {
        let now = ms * MS;
        for _ in 0..poisson(&mut rng, rate(ms / 1_000) / 1e3) {
            queue.push_back(now);
            (arrivals, outcome.requests) = (arrivals + 1, outcome.requests + 1);
        }
        servers.retain(|server| !server.is_leaving || server.busy_until > now);
        let is_free = |server: &&mut Server| !server.is_leaving && server.ready_at <= now && server.busy_until <= now;
        while !queue.is_empty()
            && let Some(server) = servers.iter_mut().find(is_free)
        {
            let arrived = queue.pop_front().expect("not empty");
            server.busy_until = now + SECOND * 1_000 / server.instance.point.throughput;
            // The latency of a request alone is less than the time in which its quota allows one.
            let answered = server.busy_until.min(now + server.instance.point.latency_ns);
            outcome.misses += u64::from(answered - arrived > SLO);
        }
        if ms % 100 == 99 {
            let staying = servers.iter().filter(|server| !server.is_leaving);
            let running: Vec<Instance> = staying.map(|server| server.instance).collect();
            let change = autoscaler
                .step(Nanos(now), std::mem::take(&mut arrivals), queue.len() as u64, &profile, &running)
                .expect("the pool suffices");
            outcome.changes_at_end += u64::from(!change.is_empty() && ms > (seconds - 30) * 1_000);
            for server in &mut servers {
                server.is_leaving |= change.remove.contains(&server.instance.id);
            }
            for point in change.add {
                let instance = Instance { id: InstanceId(next_id), point };
                next_id += 1;
                servers.push(Server { instance, ready_at: now + 50 * MS, busy_until: 0, is_leaving: false });
            }
            outcome.most = outcome.most.max(servers.len());
        }
    }
    outcome.at_end = servers.iter().filter(|server| !server.is_leaving).count();
    outcome
}

#[test]
fn a_load_of_10_to_100_to_10_requests_a_second_misses_less_than_one_percent() {
    for seed in 0..5 {
        let outcome = run(|second| if (60..120).contains(&second) { 100.0 } else { 10.0 }, 240, seed);
        let part = outcome.misses as f64 / outcome.requests as f64;
        assert!(part < 0.01, "seed {seed}: {} of {} requests missed", outcome.misses, outcome.requests);
        assert!(outcome.at_end < outcome.most && outcome.at_end > 0, "seed {seed}: {} instances", outcome.at_end);
    }
}

#[test]
fn a_function_without_requests_has_no_instance_and_starts_again() {
    let rate = |second: u64| if (30..90).contains(&second) { 0.0 } else { 20.0 };
    let idle = run(|second| if second < 30 { 20.0 } else { 0.0 }, 90, 1);
    assert_eq!((idle.at_end, idle.most > 0), (0, true));
    let again = run(rate, 150, 1);
    assert!(again.at_end > 0 && again.misses * 50 < again.requests, "{} of {}", again.misses, again.requests);
    let mut slow = Autoscaler::new(ScalingConfig { cold_start_ns: SECOND, ..config() }, Predictor::new());
    assert!(!slow.may_scale_to_zero(&profile()), "a cold start breaks the SLO");
    assert!(Autoscaler::new(config(), Predictor::new()).may_scale_to_zero(&profile()));
    let change = slow.step(Nanos(0), 1, 0, &profile(), &[]).expect("scaled");
    let running = instances(&change.add);
    for interval in 1..2_000 {
        let change = slow.step(Nanos(interval * 100 * MS), 0, 0, &profile(), &running).expect("scaled");
        assert!(change.remove.len() < running.len(), "the last instance stays");
    }
}
