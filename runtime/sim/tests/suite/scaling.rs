//! Functions whose instances follow loads that step, ramp and spike on a cluster, against an oracle
//! that knows every request.
//!
//! A failure prints its seed.

use atoll_core::packing::Divisible;
use atoll_core::scaling::{Host, Predictor, ScalingConfig};
use atoll_sim::scaling::{
    Controller, SHAPES, Scaled, ScaledFunction, ScalingReport, Shape, resnet_like, simulate_scaling,
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const END: u64 = 120 * SECOND;

fn config() -> ScalingConfig {
    ScalingConfig {
        slo_ns: 69 * MS,
        interval_ns: 100 * MS,
        headroom_percent: Some(60),
        cool_down_ns: 5 * SECOND,
        idle_ns: 20 * SECOND,
        cold_start_ns: 5 * MS,
        min_instances: 0,
        max_instances: 100,
    }
}

fn is_full() -> bool {
    std::env::var_os("ATOLL_TEST_FULL").is_some_and(|value| value == "1")
}

fn function(number: u64, shape: Shape, seed: u64) -> ScaledFunction {
    let part = number as f64 / 3.0;
    ScaledFunction {
        name: format!("f{number}"),
        profile: resnet_like(76_000),
        config: config(),
        constant_bytes: 100 << 20,
        arrivals: shape.arrivals(10.0, 100.0, END, part, seed + number),
    }
}

fn cluster(devices: usize, functions: Vec<ScaledFunction>, controller: Controller) -> Scaled {
    let divisible = Divisible { units: 80, step: 1, lanes_max: 64 };
    let host = Host { divisible, bytes: 16 << 30, is_open: true, reserved: Vec::new() };
    Scaled { hosts: vec![host; devices], functions, end_ns: END, start_ns: 5 * MS, controller }
}

/// As [`run`], without a headroom, with this cool-down.
fn follow(devices: usize, shape: Shape, controller: Controller, seed: u64, cool_down_ns: u64) -> ScalingReport {
    let config = ScalingConfig { headroom_percent: None, cool_down_ns, ..config() };
    let functions = (0..3).map(|number| ScaledFunction { config, ..function(number, shape, seed) }).collect();
    simulate_scaling(&cluster(devices, functions, controller))
}

fn run(devices: usize, shape: Shape, controller: Controller, seed: u64) -> ScalingReport {
    let functions = (0..3).map(|number| function(number, shape, seed)).collect();
    simulate_scaling(&cluster(devices, functions, controller))
}

#[test]
fn loads_that_change_are_followed_and_cost_more_than_an_oracle_pays() {
    for shape in SHAPES {
        for seed in if is_full() { 1..6 } else { 1..2 } {
            let report = run(8, shape, Controller::Autoscaler, seed);
            let oracle = run(8, shape, Controller::Oracle, seed);
            let what = format!("{shape:?}, seed {seed}");
            // The first requests of a spike that nothing announces wait for instances.
            let allowed = if shape == Shape::Spike { 0.03 } else { 0.01 };
            assert!(report.miss_ratio() < allowed, "{what}: {} missed", report.miss_ratio());
            assert!(oracle.miss_ratio() < 0.02, "{what}: the oracle missed {}", oracle.miss_ratio());
            assert!(report.promised_device_s > oracle.promised_device_s, "{what}");
            assert_eq!(report.refused + oracle.refused, 0, "{what}");
            for (report, oracle) in report.functions.iter().zip(&oracle.functions) {
                assert_eq!((report.requests, report.unserved), (oracle.requests, 0), "{what}");
                assert!(report.latencies_ns.is_sorted() && report.created >= report.removed, "{what}");
                assert_eq!(report.latencies_ns.len() as u64, report.requests, "{what}");
            }
        }
    }
}

#[test]
fn instances_that_recent_requests_needed_cost_little_more_than_an_oracle_pays() {
    for shape in SHAPES {
        for seed in if is_full() { 1..6 } else { 1..2 } {
            let oracle = follow(8, shape, Controller::Oracle, seed, 0).promised_device_s;
            let [short, long] = [100 * MS, 5 * SECOND].map(|cool_down_ns| {
                let report = follow(8, shape, Controller::Autoscaler, seed, cool_down_ns);
                let ratio = report.promised_device_s / oracle;
                assert!(report.miss_ratio() < 0.01, "{shape:?}, seed {seed}: {} missed", report.miss_ratio());
                assert!(report.fullest <= 1.0, "{shape:?}, seed {seed}: {} of a device", report.fullest);
                ratio
            });
            assert!(short > 1.0 && short < long, "{shape:?}, seed {seed}: {short}, {long}");
            assert!(short < if shape == Shape::Spike { 1.7 } else { 1.5 }, "{shape:?}, seed {seed}: {short}");
        }
    }
}

#[test]
fn the_first_request_waits_for_its_instance_to_start() {
    let report = run(4, Shape::Step, Controller::Autoscaler, 3);
    for function in &report.functions {
        let from_zero = function.from_zero_ns.expect("there was no instance at first");
        assert!((5 * MS..200 * MS).contains(&from_zero), "{}: {from_zero} ns", function.name);
    }
}

#[test]
fn instances_use_few_devices_and_those_without_room_are_counted() {
    let report = run(8, Shape::Step, Controller::Autoscaler, 4);
    // Each of the three functions needs less than two devices at its highest load.
    assert!((1..=6).contains(&report.devices_max), "{} devices", report.devices_max);
    assert!(report.used_device_s >= report.promised_device_s, "less is used than promised");
    assert!(report.samples.iter().all(|sample| sample.devices <= report.devices_max));
    let small = run(1, Shape::Step, Controller::Autoscaler, 4);
    assert!(small.refused > 0 && small.devices_max == 1);
    assert_eq!(run(1, Shape::Step, Controller::Autoscaler, 4), small, "not deterministic");
}

#[test]
fn a_run_without_requests_costs_nothing() {
    let quiet = ScaledFunction { arrivals: Vec::new(), ..function(0, Shape::Step, 1) };
    let report = simulate_scaling(&cluster(2, vec![quiet], Controller::Autoscaler));
    assert_eq!((report.promised_device_s, report.used_device_s, report.miss_ratio()), (0.0, 0.0, 0.0));
    assert!(report.samples.len() > 1_000 && report.functions[0].quantile_ns(0.99) == 0);
}

/// Length of a shape in the test of predictions, and number of times it is repeated.
const SEASON_S: usize = 600;
const SEASONS: u64 = 5;

/// The error of the predictions for the last two of several repetitions of a shape, as a part of
/// the load. Intervals are a second.
fn prediction_error(shape: Shape, mut predictor: Predictor) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for season in 0..SEASONS {
        let mut arrived = vec![0; SEASON_S];
        for at in shape.arrivals(10.0, 100.0, SEASON_S as u64 * SECOND, 0.0, season) {
            arrived[(at / SECOND) as usize] += 1;
        }
        for (second, arrived) in arrived.into_iter().enumerate() {
            let mean = shape.rate((second as f64 + 0.5) / SEASON_S as f64, 10.0, 100.0);
            if season + 2 >= SEASONS {
                off += (predictor.predict() as f64 / 1e3 - mean).abs();
                all += mean;
            }
            predictor.observe(1_000 * arrived);
        }
    }
    off / all
}

#[test]
fn predictions_of_the_shapes_have_the_errors_that_the_decision_states() {
    for (shape, bound) in SHAPES.into_iter().zip([0.09, 0.065, 0.24]) {
        let error = prediction_error(shape, Predictor::new());
        let with_season = prediction_error(shape, Predictor::with_season(60, 10));
        assert!(error < bound && with_season < bound, "{shape:?}: {error:.3}, with its season {with_season:.3}");
    }
}
