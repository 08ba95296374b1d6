//! The figures, each as rows of cells.

use super::Args;
use super::pods::{BERT, GNMT, Pod, RESNET, RNNT, Run, Shape, run};
use crate::figures::Cells;
use anyhow::Result;
use atoll_core::packing::{Divisible, InstanceId};
use atoll_core::scaling::{Constants, Host, Need, ScalingConfig, Spot, assign};
use atoll_core::tokens::{ShareRequest, ShareSpec};
use atoll_sim::scaling::{Controller, Scaled, ScaledFunction, Shape as LoadShape, resnet_like, simulate_scaling};
use std::collections::BTreeMap;

/// The grid of the paper's profiler.
const PARTITIONS: [u32; 7] = [6, 12, 24, 50, 60, 80, 100];
const QUOTAS: [u32; 5] = [20, 40, 60, 80, 100];

/// The pods of §5.4: how many of which, their partition and their quota.
const PODS: [(Shape, usize, u32, u32); 3] = [(RESNET, 4, 12, 40), (RNNT, 2, 24, 40), (BERT, 2, 50, 60)];

/// The target latency of Fig. 12.
const SLO_MS: u64 = 69;

const MIB: u64 = 1 << 20;

/// Memory of a V100.
const MEMORY: u64 = 16 << 30;

/// A pod's memory without shared constants and with them, in MiB, as §5.5 has it: ResNet, ViT-huge.
const MEMORIES: [(&str, u64, u64); 2] = [("ResNet", 1525, 1427), ("ViT-huge", 4735, 2101)];

fn bound(shape: Shape, partition: u32, quotas: (u32, u32)) -> Pod {
    Pod { shape, quotas: Some(quotas), partition, is_bound: partition < 100 }
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
                ]);
            }
        }
    }
    Ok(rows)
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
            ]);
        }
    }
    Ok(rows)
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

fn racing(shape: Shape) -> Pod {
    Pod { shape, quotas: None, partition: 100, is_bound: false }
}

fn host() -> Host {
    let divisible = Divisible { units: 80, step: 1, lanes_max: 64 };
    Host { divisible, bytes: MEMORY, is_open: true, reserved: Vec::new() }
}

fn need(partition: u32, quota: u32, bytes: u64, constants: Constants) -> Need {
    let quota = f64::from(quota) / 100.0;
    let request = ShareRequest { sm_partition: partition.into(), quota_request: quota, quota_limit: quota, group: 0 };
    let share = ShareSpec::new(&request).expect("percentages from 1 to 100");
    Need { share, bytes, constants, devices: u64::MAX }
}

/// Figure 11: the devices that eight pods need, if they share in time only, and if they are packed.
pub(super) fn packed(args: &Args) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for (scheduler, is_packed) in [("time sharing", false), ("packing", true)] {
        let pods: Vec<Pod> = PODS
            .iter()
            .flat_map(|&(shape, count, partition, quota)| {
                let partition = if is_packed { partition } else { 100 };
                // Rectangles of the plan may lie on the same units at different times, so pods are
                // not bound: the tokens keep their partitions side by side.
                let pod = Pod { shape, quotas: Some((quota, quota)), partition, is_bound: false };
                std::iter::repeat_n(pod, count)
            })
            .collect();
        let without = Constants { function: 0, bytes: 0 };
        let wanted = |(at, pod): (usize, &Pod)| {
            let quota = pod.quotas.map_or(100, |(request, _)| request);
            (InstanceId(at as u64), need(pod.partition, quota, 0, without))
        };
        let wanted: Vec<(InstanceId, Need)> = pods.iter().enumerate().map(wanted).collect();
        let mut devices: BTreeMap<usize, Vec<Pod>> = BTreeMap::new();
        for (id, spot) in assign(&vec![host(); pods.len()], &[], &wanted, 0).spots {
            if let Spot::Now { device, .. } = spot {
                devices.entry(device).or_default().push(pods[id.0 as usize]);
            }
        }
        let runs = devices.values().map(|pods| run(pods, args.seconds, args.seed)).collect::<Result<Vec<Run>>>()?;
        let mean = |of: fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64;
        rows.push(vec![
            ("scheduler", scheduler.into()),
            ("devices", (devices.len() as u64).into()),
            ("pods", devices.values().map(|pods| pods.len() as u64).sum::<u64>().into()),
            ("utilisation", mean(Run::utilisation).into()),
            ("occupancy", mean(Run::occupancy).into()),
            ("per_s", runs.iter().map(Run::all_per_s).sum::<f64>().into()),
        ]);
    }
    Ok(rows)
}

/// Figure 12: a load that steps up and down, and the instances that follow it, in parts of a
/// twentieth of the run.
pub(super) fn scaled(args: &Args) -> Vec<Cells> {
    let (end_ns, ms) = (120_000_000_000, 1_000_000);
    let config = ScalingConfig {
        slo_ns: SLO_MS * ms,
        interval_ns: 100 * ms,
        headroom_percent: Some(60),
        cool_down_ns: 5_000 * ms,
        idle_ns: 20_000 * ms,
        cold_start_ns: 5 * ms,
        min_instances: 0,
        max_instances: 100,
    };
    let function = ScaledFunction {
        name: "ResNet".into(),
        profile: resnet_like(76_000),
        config,
        constant_bytes: 100 * MIB,
        arrivals: LoadShape::Step.arrivals(10.0, 100.0, end_ns, 0.0, args.seed),
    };
    let controller = Controller::Autoscaler;
    let setup = Scaled { hosts: vec![host(); 4], functions: vec![function], end_ns, start_ns: 5 * ms, controller };
    let report = simulate_scaling(&setup);
    let every = report.samples.len().div_ceil(20).max(1);
    let row = |samples: &[atoll_sim::scaling::Sample]| {
        let mean =
            |of: fn(&atoll_sim::scaling::Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len() as f64;
        vec![
            ("from_s", (samples[0].at_ns as f64 / 1e9).into()),
            ("load_per_s", mean(|sample| sample.rate).into()),
            ("capacity_per_s", mean(|sample| sample.capacity).into()),
            ("instances", mean(|sample| sample.instances as f64).into()),
            ("devices", mean(|sample| sample.devices as f64).into()),
            ("slo_ms", SLO_MS.into()),
            ("missed", report.miss_ratio().into()),
        ]
    };
    report.samples.chunks(every).map(row).collect()
}

/// Figure 13: memory of pods with constants of their own, and with shared ones, and how many fit a
/// device.
pub(super) fn memory() -> Vec<Cells> {
    let mut rows = Vec::new();
    for (model, own, shared) in MEMORIES {
        for (sharing, is_shared) in [("none", false), ("constants", true)] {
            let (of_pod, once) = if is_shared { (shared, own - shared) } else { (own, 0) };
            // Pods of 1 % × 1 %: memory alone decides.
            let constants = Constants { function: 0, bytes: once * MIB };
            let wanted: Vec<(InstanceId, Need)> =
                (0..64).map(|id| (InstanceId(id), need(1, 1, of_pod * MIB, constants))).collect();
            let is_there = |spot: &Spot| matches!(spot, Spot::Now { is_over_memory: false, .. });
            let fit = assign(&[host()], &[], &wanted, 0).spots.iter().filter(|(_, spot)| is_there(spot)).count();
            rows.push(vec![
                ("model", model.into()),
                ("sharing", sharing.into()),
                ("one_pod_mib", (once + of_pod).into()),
                ("three_pods_mib", (once + 3 * of_pod).into()),
                ("pods_on_16_gib", (fit as u64).into()),
            ]);
        }
    }
    rows
}
