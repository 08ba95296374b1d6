//! The instances that recent requests needed, and the autoscaler that follows them.

use atoll_core::Nanos;
use atoll_core::packing::InstanceId;
use atoll_core::rng::Rng;
use atoll_core::scaling::{
    Autoscaler, Change, Demand, Instance, Needed, Observed, Point, Predictor, Profile, ScalingConfig, Why,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// 10 requests per second, each 50 ms: with an SLO of 100 ms, 45 of the 50 ms of slack are used.
const SMALL: Point = Point { partition: 10, quota: 20, throughput: 10_000, latency_ns: 50 * MS };

/// Half as efficient, and faster.
const LARGE: Point = Point { partition: 20, quota: 100, throughput: 50_000, latency_ns: 20 * MS };

fn config() -> ScalingConfig {
    ScalingConfig {
        slo_ns: 100 * MS,
        interval_ns: 100 * MS,
        headroom_percent: None,
        cool_down_ns: 500 * MS,
        idle_ns: 10 * SECOND,
        cold_start_ns: 5 * MS,
        min_instances: 0,
        max_instances: 100,
    }
}

fn profile(points: &[Point]) -> Profile {
    Profile::new(points.to_vec()).expect("a valid profile")
}

fn demand(points: &[Point]) -> Demand {
    Demand::new(&config(), &profile(points))
}

fn instances(points: &[Point]) -> Vec<Instance> {
    points.iter().zip(0..).map(|(&point, id)| Instance { id: InstanceId(id), point }).collect()
}

fn count(demand: &mut Demand, at: u64) -> u64 {
    demand.needed(Nanos(at)).expect("instances start in time").instances
}

#[test]
fn requests_that_cannot_share_an_instance_in_time_need_another_one_for_a_cool_down() {
    let mut demand = demand(&[SMALL]);
    let at = |ms: u64| SECOND + ms * MS;
    assert_eq!(count(&mut demand, at(0)), 1, "a function that has requests has an instance");
    // An instance begins a request every 100 ms, and a request waits at most 45 ms.
    demand.arrive(Nanos(at(0)));
    demand.arrive(Nanos(at(55)));
    assert_eq!(count(&mut demand, at(55)), 1);
    demand.arrive(Nanos(at(56)));
    assert_eq!(count(&mut demand, at(56)), 2, "the first instance is free at 200 ms");
    // The second one is free at 156 ms, and not needed any more half a second later.
    assert_eq!((count(&mut demand, at(656)), count(&mut demand, at(657))), (2, 1));
    assert_eq!(count(&mut demand, at(100_000)), 1);
}

#[test]
fn the_point_with_the_least_device_time_is_chosen_and_kept_for_small_differences() {
    let chosen = |rate: u64, demand: &mut Demand, from: u64| {
        let mut rng = Rng::new(3);
        let mut at = from;
        while at < from + 60 * SECOND {
            at += 2 * rng.below(SECOND / rate);
            demand.arrive(Nanos(at));
            demand.needed(Nanos(at));
        }
        (demand.needed(Nanos(at)).expect("instances start in time").point, at)
    };
    // A large instance has five times the area, but a heavy load needs less area in total with
    // large instances.
    let mut demand = demand(&[Point { partition: 20, ..SMALL }, Point { throughput: 95_000, ..LARGE }]);
    let (light, end) = chosen(2, &mut demand, SECOND);
    assert_eq!(light.quota, 20, "{light}");
    let (heavy, end) = chosen(80, &mut demand, end);
    assert_eq!(heavy.quota, 100, "{heavy}");
    let (light, _) = chosen(2, &mut demand, end);
    assert_eq!(light.quota, 20, "{light}");
}

#[test]
fn points_that_miss_the_target_after_a_start_are_not_used() {
    let mut slow = demand(&[SMALL]);
    slow.set_cold_start(51 * MS);
    assert_eq!(slow.needed(Nanos(0)), None, "instances have to be there before requests");
    let mut fast = demand(&[SMALL, Point { quota: 100, throughput: 45_000, latency_ns: 40 * MS, ..SMALL }]);
    fast.set_cold_start(51 * MS);
    assert_eq!(fast.needed(Nanos(0)).map(|needed| needed.point.quota), Some(100));
    let mut none = Demand::new(&ScalingConfig { slo_ns: MS, ..config() }, &profile(&[SMALL]));
    none.arrive(Nanos(0));
    assert_eq!(none.needed(Nanos(0)), None);
}

#[test]
fn a_measurement_that_changes_keeps_what_was_replayed_and_other_points_do_not() {
    let mut demand = demand(&[SMALL]);
    (0..5).for_each(|_| demand.arrive(Nanos(SECOND)));
    assert_eq!(count(&mut demand, SECOND), 5);
    demand.set_profile(&profile(&[Point { throughput: 11_000, ..SMALL }]));
    assert_eq!(demand.needed(Nanos(SECOND)).map(|needed| needed.load()), Some(55_000));
    demand.set_profile(&profile(&[LARGE]));
    assert_eq!(count(&mut demand, SECOND), 1);
}

#[test]
fn any_arrivals_need_at_most_as_many_instances_as_there_may_be() {
    let grid: Vec<Point> = (1..=10)
        .flat_map(|partition| (1..=10).map(move |quota| (10 * partition, 10 * quota)))
        .map(|(partition, quota)| {
            let throughput = u64::from(partition * quota);
            Point { partition, quota, throughput, latency_ns: 100 * MS - u64::from(partition + quota) }
        })
        .collect();
    for seed in 0..5 {
        let (mut rng, mut now) = (Rng::new(seed), 0);
        let mut demand = demand(&grid);
        for _ in 0..2_000 {
            now += [0, 1, MS, SECOND, 1 << 50][rng.below(5) as usize];
            demand.arrive(Nanos(now));
            let needed = demand.needed(Nanos(now));
            assert!(needed.is_none_or(|needed| (1..=1024).contains(&needed.instances)), "seed {seed}: {needed:?}");
        }
        demand.arrive(Nanos(u64::MAX));
        demand.needed(Nanos(0));
    }
}

/// One step of a new autoscaler without a set headroom.
fn step_of(needed: Needed, running: &[Instance], config: ScalingConfig) -> Change {
    let observed = Observed { arrivals: 1, needed: Some(needed), ..Observed::default() };
    let mut autoscaler = Autoscaler::new(config, Predictor::new());
    let profile = profile(&[SMALL]);
    autoscaler.step(Nanos(SECOND), &observed, Some(&profile), SMALL, running).expect("scaled").change
}

#[test]
fn the_autoscaler_follows_the_demand_without_a_cool_down_of_its_own() {
    let needed = |instances| Needed { instances, point: SMALL };
    assert_eq!(step_of(needed(3), &instances(&[SMALL]), config()).add, [SMALL; 2]);
    assert_eq!(step_of(needed(3), &instances(&[SMALL; 5]), config()).remove.len(), 2);
    assert_eq!(step_of(needed(5), &instances(&[SMALL; 5]), config()), Change::default());
    // The minimum and maximum number of instances hold.
    let few = ScalingConfig { max_instances: 2, ..config() };
    assert_eq!(step_of(needed(9), &instances(&[SMALL]), few).add, [SMALL]);
    let some = ScalingConfig { min_instances: 4, ..config() };
    assert_eq!(step_of(needed(1), &instances(&[SMALL; 5]), some).remove.len(), 1);
    // A set headroom is used instead of the replay.
    let set = ScalingConfig { headroom_percent: Some(0), ..config() };
    assert_eq!(step_of(needed(30), &instances(&[SMALL; 5]), set), Change::default());
    // Less efficient instances go first, and larger ones than needed are resized.
    let mixed = instances(&[SMALL, LARGE, SMALL]);
    assert_eq!(step_of(needed(2), &mixed, config()).remove, [InstanceId(1)]);
    let change = step_of(needed(1), &instances(&[LARGE]), config());
    assert_eq!((change.resize, change.remove.len()), (vec![(InstanceId(0), SMALL)], 0));
}

#[test]
fn a_request_gets_another_instance_at_once_up_to_the_maximum() {
    let autoscaler = Autoscaler::new(ScalingConfig { max_instances: 3, ..config() }, Predictor::new());
    let needed = Needed { instances: 3, point: SMALL };
    assert_eq!(autoscaler.another(&needed, 2, 20_000), Some(SMALL));
    assert_eq!(autoscaler.another(&needed, 2, 30_000), None, "there are enough");
    assert_eq!(autoscaler.another(&needed, 3, 20_000), None, "there may be no more");
    let set = Autoscaler::new(ScalingConfig { headroom_percent: Some(60), ..config() }, Predictor::new());
    assert_eq!(set.another(&needed, 2, 20_000), None);
}

#[test]
fn late_requests_add_an_instance_that_is_kept_for_half_a_minute() {
    let mut autoscaler = Autoscaler::new(config(), Predictor::new());
    let (profile, mut running) = (profile(&[SMALL]), instances(&[SMALL]));
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    for interval in 0..600 {
        let late = if interval < 20 { 5 } else { 0 };
        let needed = Some(Needed { instances: 1, point: SMALL });
        let observed = Observed { arrivals: 1, ended: 10, late, needed, ..Observed::default() };
        let now = Nanos(interval * 100 * MS);
        let decision = autoscaler.step(now, &observed, Some(&profile), SMALL, &running).expect("scaled");
        if !decision.change.add.is_empty() {
            assert_eq!(decision.why, Why::Late);
            added.push(interval);
        }
        removed.extend((!decision.change.remove.is_empty()).then_some(interval));
        let have = running.len() + decision.change.add.len() - decision.change.remove.len();
        running = instances(&vec![SMALL; have]);
    }
    assert_eq!((added, removed), (vec![0], vec![300]), "at most one in five seconds, kept for half a minute");
}
