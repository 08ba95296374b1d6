//! The figures, each as rows of cells.

use super::Args;
use super::pods::{GNMT, Pod, RESNET, RNNT, Run, Shape, Units, run};
use crate::figures::Cells;
use anyhow::Result;
use atoll_core::packing::Divisible;
use atoll_core::scaling::{Constants, Host, Need, ScalingConfig};
use atoll_core::tokens::{ShareRequest, ShareSpec};
use atoll_server::ScalingSettings;
use atoll_sim::scaling::{
    Controller, Sample, Scaled, ScaledFunction, Shape as LoadShape, resnet_like, simulate_scaling,
};
use serde_json::json;

/// The grid of the paper's profiler.
const PARTITIONS: [u32; 7] = [6, 12, 24, 50, 60, 80, 100];
const QUOTAS: [u32; 5] = [20, 40, 60, 80, 100];

/// The target latency of Fig. 12.
const SLO_MS: u64 = 69;

/// How long an instance takes to start.
const START_MS: u64 = 5;

pub(super) const MIB: u64 = 1 << 20;

/// Memory of a V100.
const MEMORY: u64 = 16 << 30;

fn bound(shape: Shape, partition: u32, quotas: (u32, u32)) -> Pod {
    let units = if partition < 100 { Units::Own } else { Units::Any };
    Pod { shape, quotas: Some(quotas), partition, units }
}

/// Figure 8: throughput by partition and quota.
pub(super) fn profile(args: &Args) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for shape in [RESNET, RNNT, GNMT] {
        for partition in PARTITIONS {
            for quota in QUOTAS {
                let found = run(&[bound(shape, partition, (quota, quota))], args.seconds, args.seed)?;
                rows.push(vec![
                    ("model", shape.name.into()),
                    ("partition", u64::from(partition).into()),
                    ("quota", u64::from(quota).into()),
                    ("per_s", found.per_s(0).into()),
                    ("p99_ms", found.p99_ms().into()),
                    ("paper", if (partition, quota) == (100, 100) { alone(shape) } else { "" }.into()),
                ]);
            }
        }
    }
    Ok(rows)
}

/// The paper's requests per second of a model that has the device for itself.
fn alone(shape: Shape) -> &'static str {
    match shape.name {
        "ResNet" => "71.37",
        "RNNT" => "12.51",
        "GNMT" => "28.85",
        _ => "",
    }
}

/// Figure 9: ResNet (50 to 80 % of the time) and RNNT (50 %) beside each other and alone, on all
/// units and on 24 % each.
pub(super) fn isolation(args: &Args) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for (sharing, partition) in [("time", 100), ("space", 24)] {
        let pods = [bound(RESNET, partition, (50, 80)), bound(RNNT, partition, (50, 50))];
        let beside = run(&pods, args.seconds, args.seed)?;
        for (at, pod) in pods.iter().enumerate() {
            let alone = run(&[*pod], args.seconds, args.seed)?.per_s(0);
            rows.push(vec![
                ("sharing", sharing.into()),
                ("model", pod.shape.name.into()),
                ("alone_per_s", alone.into()),
                ("beside_per_s", beside.per_s(at).into()),
                ("beside_over_alone", (beside.per_s(at) / alone.max(f64::MIN_POSITIVE)).into()),
                ("paper", of_isolation(sharing, pod.shape).into()),
            ]);
        }
    }
    Ok(rows)
}

/// What the paper says of Fig. 9.
pub(super) fn of_isolation(sharing: &str, shape: Shape) -> &'static str {
    match (sharing, shape.name) {
        ("time", "ResNet") => "loses what it had beyond its request",
        _ => "no influence",
    }
}

/// Figure 10: pods that race, and pods with 12 % and 24 % of the units.
pub(super) fn spatial(args: &Args) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for shape in [RESNET, RNNT, GNMT] {
        let single = run(&[racing(shape)], args.seconds, args.seed)?.all_per_s();
        let mut row = |sharing: &str, pods: u64, found: &Run| {
            rows.push(vec![
                ("model", shape.name.into()),
                ("sharing", sharing.into()),
                ("pods", pods.into()),
                ("per_s", found.all_per_s().into()),
                ("over_one_racing", (found.all_per_s() / single.max(f64::MIN_POSITIVE)).into()),
                ("p99_ms", found.p99_ms().into()),
                ("utilisation", found.utilisation().into()),
                ("occupancy", found.occupancy().into()),
                ("paper", of_partitions(shape, sharing, pods).into()),
            ]);
        };
        for count in [1, 2, 4, 8] {
            row("racing", count, &run(&vec![racing(shape); count as usize], args.seconds, args.seed)?);
            row("12 %", count, &run(&vec![bound(shape, 12, (100, 100)); count as usize], args.seconds, args.seed)?);
            if count <= 4 {
                row("24 %", count, &run(&vec![bound(shape, 24, (100, 100)); count as usize], args.seconds, args.seed)?);
            }
        }
    }
    Ok(rows)
}

/// What the paper's Fig. 10 has for eight pods with 12 % each over one that races.
fn of_partitions(shape: Shape, sharing: &str, pods: u64) -> &'static str {
    match (shape.name, sharing, pods) {
        ("ResNet", "12 %", 8) => "4.16",
        ("RNNT", "12 %", 8) => "3.46",
        ("GNMT", "12 %", 8) => "1.52",
        _ => "",
    }
}

fn racing(shape: Shape) -> Pod {
    Pod { shape, quotas: None, partition: 100, units: Units::Any }
}

pub(super) fn host() -> Host {
    let divisible = Divisible { units: 80, step: 1, lanes_max: 64 };
    Host { divisible, bytes: MEMORY, is_open: true, reserved: Vec::new() }
}

pub(super) fn need(partition: u32, quota: u32, bytes: u64, constants: Constants) -> Need {
    let quota = f64::from(quota) / 100.0;
    let request = ShareRequest { sm_partition: partition.into(), quota_request: quota, quota_limit: quota, group: 0 };
    let share = ShareSpec::new(&request).expect("percentages from 1 to 100");
    Need { share, bytes, constants, devices: u64::MAX }
}

/// Figure 12: a load that steps up and down, and the instances that follow it by the daemon's rule,
/// in parts of a twentieth of the run: with decisions every 100 ms, as `bench scaling` has them, and
/// with the daemon's default settings.
pub(super) fn scaled(args: &Args) -> Result<Vec<Cells>> {
    let often = json!({
        "latency_ms": SLO_MS, "interval_ms": 100, "cool_down_ms": 100, "idle_ms": 20_000, "max_instances": 100,
    });
    let mut rows = Vec::new();
    for (settings, values) in [("every 100 ms", often), ("defaults", json!({ "latency_ms": SLO_MS }))] {
        let values: ScalingSettings = serde_json::from_value(values)?;
        rows.extend(follow(args, settings, values.config()));
    }
    Ok(rows)
}

/// The instances under some settings.
fn follow(args: &Args, settings: &str, config: ScalingConfig) -> Vec<Cells> {
    let (end_ns, start_ns) = (120_000_000_000, START_MS * 1_000_000);
    let function = ScaledFunction {
        name: "ResNet".into(),
        profile: resnet_like(76_000),
        config: ScalingConfig { cold_start_ns: start_ns, ..config },
        constant_bytes: 100 * MIB,
        arrivals: LoadShape::Step.arrivals(10.0, 100.0, end_ns, 0.0, args.seed),
    };
    let controller = Controller::Autoscaler;
    let setup = Scaled { hosts: vec![host(); 4], functions: vec![function], end_ns, start_ns, controller };
    let report = simulate_scaling(&setup);
    let every = report.samples.len().div_ceil(20).max(1);
    let row = |samples: &[Sample]| {
        let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
        vec![
            ("settings", settings.into()),
            ("from_s", (samples[0].at_ns as f64 / 1e9).into()),
            ("load_per_s", mean(|sample| sample.rate).into()),
            ("capacity_per_s", mean(|sample| sample.capacity).into()),
            ("instances", mean(|sample| sample.instances as f64).into()),
            ("devices", mean(|sample| sample.devices as f64).into()),
            ("slo_ms", SLO_MS.into()),
            ("missed", report.miss_ratio().into()),
            ("paper", "missed less than 0.01".into()),
        ]
    };
    report.samples.chunks(every).map(row).collect()
}
