//! Scaling: the algorithm, invalid profiles, the error of the prediction, and simulations in which
//! the load steps up and down.

use atoll_core::Nanos;
use atoll_core::packing::InstanceId;
use atoll_core::rng::Rng;
use atoll_core::scaling::{
    Autoscaler, Change, ConfigError, Decision, Instance, Observed, Point, Predictor, Profile, ScaleError,
    ScalingConfig, Why, scale,
};
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
            // The latency of a single request: its device time plus the time without quota.
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
    let huge = refused(&|points| points[3].throughput = u64::MAX / 50);
    assert!(huge.starts_with("a throughput above 1000000 requests/s at 6 %"), "{huge}");
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

/// An instance of the simulation. It serves one request after the other, each for the inverse of
/// its throughput.
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
        headroom_percent: Some(60),
        cool_down_ns: 5 * SECOND,
        idle_ns: 20 * SECOND,
        cold_start_ns: 50 * MS,
        min_instances: 0,
        max_instances: 100,
    }
}

/// Simulates a load of requests per second for a number of seconds, on a large enough pool.
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
            // The latency of a single request may be shorter than the interval between requests
            // that its quota allows.
            let answered = server.busy_until.min(now + server.instance.point.latency_ns);
            outcome.misses += u64::from(answered - arrived > SLO);
        }
        if ms % 100 == 99 {
            let staying = servers.iter().filter(|server| !server.is_leaving);
            let running: Vec<Instance> = staying.map(|server| server.instance).collect();
            let (arrivals, queued) = (std::mem::take(&mut arrivals), queue.len() as u64);
            let observed = Observed { arrivals, queued, ..Observed::default() };
            let Decision { change, .. } = autoscaler
                .step(Nanos(now), &observed, Some(&profile), profile.points()[0], &running)
                .expect("the pool suffices");
            outcome.changes_at_end += u64::from(!change.is_empty() && ms > (seconds - 30) * 1_000);
            for server in &mut servers {
                server.is_leaving |= change.remove.contains(&server.instance.id);
                let resized = change.resize.iter().find(|(id, _)| *id == server.instance.id);
                server.instance.point = resized.map_or(server.instance.point, |(_, point)| *point);
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
    let mut step = |interval: u64, arrivals: u64, running: &[Instance]| {
        let observed = Observed { arrivals, ..Observed::default() };
        let now = Nanos(interval * 100 * MS);
        slow.step(now, &observed, Some(&profile()), profile().points()[0], running).expect("scaled").change
    };
    let running = instances(&step(0, 1, &[]).add);
    for interval in 1..2_000 {
        assert!(step(interval, 0, &running).remove.len() < running.len(), "the last instance stays");
    }
}

#[test]
fn a_spike_and_a_ramp_are_followed_and_end() {
    let spike = |second: u64| if (60..63).contains(&second) { 200.0 } else { 10.0 };
    let ramp = |second: u64| 10.0 + second.min(180) as f64;
    for seed in 0..5 {
        let outcome = run(spike, 180, seed);
        // A spike comes without warning, so its first requests wait for instances.
        assert!(outcome.misses * 20 < outcome.requests, "seed {seed}: {} missed", outcome.misses);
        assert!(outcome.at_end * 2 < outcome.most, "seed {seed}: {} of {}", outcome.at_end, outcome.most);
        let outcome = run(ramp, 240, seed);
        let part = outcome.misses as f64 / outcome.requests as f64;
        assert!(part < 0.01, "seed {seed}: {} of {} missed", outcome.misses, outcome.requests);
    }
}

#[test]
fn scaling_down_ends() {
    for seed in 0..5 {
        let outcome = run(|second| if second < 30 { 100.0 } else { 0.0 }, 120, seed);
        assert_eq!((outcome.at_end, outcome.changes_at_end), (0, 0), "seed {seed}");
    }
}

/// One step of a function with these instances.
fn step_of(config: ScalingConfig, observed: &Observed, running: &[Instance]) -> Decision {
    let mut autoscaler = Autoscaler::new(config, Predictor::new());
    autoscaler.step(Nanos(0), observed, Some(&profile()), profile().points()[0], running).expect("scaled")
}

#[test]
fn instances_stay_within_their_range_and_grow_and_shrink_at_its_ends() {
    let range = |min_instances, max_instances| ScalingConfig { min_instances, max_instances, ..config() };
    let busy = Observed { arrivals: 50, ..Observed::default() };
    assert!(step_of(range(0, 100), &busy, &[]).change.add.len() > 3);
    assert_eq!(step_of(range(0, 3), &busy, &[]).change.add.len(), 3);
    let idle = step_of(range(2, 3), &Observed::default(), &[]);
    assert_eq!((idle.change.add.len(), idle.why), (2, Why::Minimum));
    // At the maximum number of instances, the smallest one is enlarged.
    let small = profile().points()[0];
    let running = instances(&[small, profile().most_efficient(SLO).expect("a point")]);
    let decision = step_of(range(0, 2), &busy, &running);
    let [(grown, point)] = decision.change.resize[..] else { panic!("{decision:?}") };
    assert!(grown == running[0].id && point.throughput > small.throughput && decision.change.add.is_empty());
    // At the minimum number of instances, the last one shrinks after the cool-down.
    let large = instances(&[*profile().points().last().expect("a point")]);
    let mut autoscaler = Autoscaler::new(range(1, 2), Predictor::new());
    let mut shrunk = Vec::new();
    for second in 0..20 {
        let observed = Observed { arrivals: u64::from(second == 0), ..Observed::default() };
        let now = Nanos(second * SECOND);
        let decision = autoscaler.step(now, &observed, Some(&profile()), small, &large).expect("scaled");
        assert!(decision.change.remove.is_empty(), "{decision:?}");
        shrunk.extend(decision.change.resize);
    }
    assert!(shrunk.iter().all(|(_, point)| point.area() < large[0].point.area()) && !shrunk.is_empty(), "{shrunk:?}");
}

#[test]
fn late_requests_add_an_instance_once_per_cool_down_and_keep_what_is_there() {
    let efficient = profile().most_efficient(SLO).expect("a point");
    let running = instances(&[efficient; 2]);
    let mut autoscaler = Autoscaler::new(config(), Predictor::new());
    let mut added = Vec::new();
    for interval in 0..100 {
        let observed = Observed { arrivals: 1, ended: 100, late: 2, ..Observed::default() };
        let now = Nanos(interval * 100 * MS);
        let decision = autoscaler.step(now, &observed, Some(&profile()), efficient, &running).expect("scaled");
        assert!(decision.change.remove.is_empty(), "{decision:?}");
        if !decision.change.add.is_empty() {
            assert_eq!(decision.why, Why::Late);
            added.push(interval);
        }
    }
    assert_eq!(added, [1, 51], "two late requests may be chance");
    let few = Observed { arrivals: 1, ended: 200, late: 2, ..Observed::default() };
    assert_eq!(step_of(config(), &few, &running).change, Change::default(), "one of 100 may be late");
}

#[test]
fn a_late_request_now_and_then_is_no_reason_even_if_few_came() {
    let running = instances(&[profile().most_efficient(SLO).expect("a point")]);
    let mut autoscaler = Autoscaler::new(config(), Predictor::new());
    for second in 0..100 {
        // Two of 50 in a cool-down.
        let observed = Observed { arrivals: 10, ended: 10, late: u64::from(second % 3 == 0), ..Observed::default() };
        let now = Nanos(second * SECOND);
        let decision = autoscaler.step(now, &observed, Some(&profile()), running[0].point, &running).expect("scaled");
        assert_ne!(decision.why, Why::Late, "{second}");
    }
}

#[test]
fn a_load_beyond_all_instances_adds_as_many_as_there_may_be() {
    let huge = Observed { arrivals: 10_000_000, queued: 1 << 40, ..Observed::default() };
    for most in [1, 8, 1024] {
        let most_of = ScalingConfig { max_instances: most, ..config() };
        let running = instances(&[profile().points()[0]]);
        let decision = step_of(most_of, &huge, &running);
        assert_eq!(decision.change.add.len(), most as usize - 1);
        let [(_, larger)] = decision.change.resize[..] else { panic!("{decision:?}") };
        assert!(larger.throughput > running[0].point.throughput);
        assert_eq!((step_of(most_of, &huge, &[]).change.add.len(), decision.problem), (most as usize, None));
    }
}

#[test]
fn a_target_that_no_point_keeps_is_said_and_the_fastest_point_serves() {
    let best = *profile().points().iter().min_by_key(|point| point.latency_ns).expect("a point");
    let strict = ScalingConfig { slo_ns: MS, min_instances: 2, ..config() };
    let busy = Observed { arrivals: 50, ..Observed::default() };
    for observed in [busy, Observed::default()] {
        let decision = step_of(strict, &observed, &[]);
        assert_eq!(decision.problem, Some(ScaleError::Slo { slo_ns: MS, best_ns: best.latency_ns }));
        assert!(decision.change.add.len() >= 2, "{decision:?}");
        assert!(decision.change.add.iter().all(|point| *point == best), "{decision:?}");
    }
}

#[test]
fn what_others_serve_is_not_served_twice() {
    let busy = Observed { arrivals: 1, ..Observed::default() };
    assert!(!step_of(config(), &busy, &[]).change.add.is_empty());
    let served = Observed { base: 100_000, ..busy };
    assert_eq!(step_of(config(), &served, &[]).change, Change::default());
}

#[test]
fn bad_settings_are_refused_with_the_cause() {
    assert!(config().checked().is_ok());
    let refused = |change: &dyn Fn(&mut ScalingConfig)| {
        let mut config = config();
        change(&mut config);
        config.checked().expect_err("refused")
    };
    let range = refused(&|config| (config.min_instances, config.max_instances) = (3, 2));
    assert_eq!(range, ConfigError::Range { min: 3, max: 2 });
    assert!(range.to_string().starts_with("at least 3 instances, and at most 2;"), "{range}");
    assert_eq!(refused(&|config| config.max_instances = 0), ConfigError::Most(0));
    assert_eq!(refused(&|config| config.max_instances = 1025), ConfigError::Most(1025));
    assert_eq!(refused(&|config| config.slo_ns = 0), ConfigError::NoSlo);
    assert_eq!(refused(&|config| config.interval_ns = 0), ConfigError::NoInterval);
    assert_eq!(refused(&|config| config.headroom_percent = Some(1_000)), ConfigError::Headroom(1_000));
}

#[test]
fn a_clock_that_stands_still_decides_nothing_and_loses_no_requests() {
    let mut autoscaler = Autoscaler::new(config(), Predictor::new());
    let mut step = |now: u64, arrivals: u64| {
        let observed = Observed { arrivals, ..Observed::default() };
        autoscaler.step(Nanos(now), &observed, Some(&profile()), profile().points()[0], &[])
    };
    step(SECOND, 0).expect("the first step");
    for now in [SECOND, SECOND - 1] {
        let error = step(now, 5).expect_err("refused");
        assert_eq!(error, ScaleError::Clock { last: Nanos(SECOND), now: Nanos(now) });
        assert!(error.to_string().contains("nothing is decided until it goes on"), "{error}");
    }
    assert_eq!(step(2 * SECOND, 1).expect("it goes on").rate, 11_000);
}

#[test]
fn a_request_right_after_a_step_is_no_high_load() {
    let mut autoscaler = Autoscaler::new(config(), Predictor::new());
    let mut step = |at_ms: u64, arrivals: u64| {
        let observed = Observed { arrivals, ..Observed::default() };
        let step = autoscaler.step(Nanos(at_ms * MS), &observed, Some(&profile()), profile().points()[0], &[]);
        step.expect("scaled").rate
    };
    // The interval is 100 ms. Steps that come early count their requests until one is not early.
    let rates = [(0, 0), (1, 1), (2, 1), (100, 3), (200, 4)].map(|(at_ms, arrivals)| step(at_ms, arrivals));
    assert_eq!(rates, [0, 10_000, 20_000, 50_000, 40_000]);
}

#[test]
fn a_function_without_a_profile_gets_one_instance_and_is_learned_from_its_requests() {
    let unmeasured = Point { partition: 100, quota: 20, throughput: 0, latency_ns: 0 };
    let mut autoscaler = Autoscaler::new(ScalingConfig { min_instances: 0, ..config() }, Predictor::new());
    let mut step = |second: u64, arrivals: u64, running: &[Instance]| {
        let observed = Observed { arrivals, ..Observed::default() };
        autoscaler.step(Nanos(second * SECOND), &observed, None, unmeasured, running).expect("scaled")
    };
    assert_eq!(step(0, 0, &[]).change, Change::default());
    assert_eq!((step(1, 500, &[]).change.add, step(2, 500, &[]).why), (vec![unmeasured], Why::First));
    let one = instances(&[unmeasured]);
    assert_eq!(step(3, 500, &one).change, Change::default(), "it is measured first");
    assert_eq!(step(30, 0, &one).change.remove, [one[0].id], "it is idle");
    // 2 ms of device time at 20 % of the time: 100 requests in a second; at 100 %, 500.
    let learned = Profile::learned(100, 20, 2 * MS, 40 * MS).expect("a profile");
    let rates: Vec<u64> = learned.points().iter().map(|point| point.throughput).collect();
    assert_eq!(rates, [100_000, 200_000, 300_000, 400_000, 500_000]);
    assert_eq!((learned.points()[0].latency_ns, learned.points()[4].latency_ns), (34 * MS, 2 * MS));
    assert_eq!(learned.most_efficient(SECOND).map(|point| point.quota), Some(20), "all are as efficient");
    for (partition, unit, service_ns) in [(0, 20, MS), (100, 0, MS), (100, 20, u64::MAX)] {
        assert!(Profile::learned(partition, unit, service_ns, 40 * MS).is_err());
    }
}

#[test]
fn instances_of_before_have_an_idle_time() {
    let running = instances(&[profile().points()[0]]);
    let known = profile();
    for profile in [None, Some(&known)] {
        let mut autoscaler = Autoscaler::new(config(), Predictor::new());
        let mut removed_at = None;
        for second in 0..60 {
            let now = Nanos(second * SECOND);
            let step = autoscaler.step(now, &Observed::default(), profile, known.points()[0], &running);
            if !step.expect("scaled").change.remove.is_empty() {
                removed_at = removed_at.or(Some(second));
            }
        }
        assert!(removed_at.is_some_and(|second| second >= 20), "{removed_at:?}");
    }
}

#[test]
fn a_profile_is_interpolated_and_says_its_error() {
    let profile = profile();
    let exact = profile.estimate(12, 40).expect("a point of the grid");
    assert!(profile.points().contains(&exact.point));
    let half = profile.estimate(18, 50).expect("between points");
    assert_eq!(half.point.throughput, (37_000 + 71_000) / 2 / 2);
    let error = half.error_percent.expect("the grid has inner points");
    // From 12 % and 50 %, 24 % is estimated as 48.68 requests/s instead of 71.
    assert_eq!(error, 32);
    for (partition, quota) in [(5, 50), (12, 10), (12, 101), (101, 40)] {
        assert_eq!(profile.estimate(partition, quota), None, "outside the grid");
    }
    let corner = Profile::new(vec![profile.points()[0]]).expect("a profile");
    assert_eq!(corner.estimate(6, 20).expect("the point").error_percent, None);
}
