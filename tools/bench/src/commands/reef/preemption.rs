//! Policies and preemption: figures 11 to 15 and 20, and GPREEMPT's table.

use super::runs::{MI50, MI100, Runs, V100, client, first_block_us, ratio, rt_mean_ms, throughput};
use crate::figures::Cells;
use anyhow::Result;
use atoll_core::{Class, LaunchProfile};
use atoll_sim::{DISB, Kernel, Load, Model, Workload};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// REEF's policies, the baseline first.
const POLICIES: [&str; 4] = ["rt-only", "sequential", "streams", "reef"];

/// Preemption by eviction and by waiting.
const PREEMPTION: [&str; 2] = ["reset", "block-wait"];

/// Calls per second of the real-time client that preempts: irregular, so that it meets best-effort
/// launches in all phases.
const PREEMPTING: Load = Load::Poisson(97.0);

/// The real-time model of DISB's workloads A to C.
const REAL_TIME: &str = "vgg19-imagenet";

/// Capacity of a device queue that holds all launches of most models.
const UNLIMITED: u32 = 1024;

/// Figure 11: latency and throughput of REEF's policies.
pub(super) fn workloads(runs: &Runs<'_>, real: Option<&Path>) -> Result<Vec<Cells>> {
    let mut workloads = DISB.iter().map(|letter| runs.disb(letter)).collect::<Result<Vec<Workload>>>()?;
    if let Some(path) = real {
        let read = Workload::read(path).map_err(crate::failure::users)?;
        workloads.push(Workload { name: "REAL".into(), duration_ns: runs.duration_ns, ..read });
    }
    let mut rows = Vec::new();
    for workload in &workloads {
        let yardstick = runs.run(MI50, POLICIES[0], workload)?;
        for policy in POLICIES {
            let report = runs.run(MI50, policy, workload)?;
            rows.push(vec![
                ("workload", workload.name.as_str().into()),
                ("policy", policy.into()),
                ("rt_mean_ms", rt_mean_ms(&report).into()),
                ("rt_mean_over_rt_only", ratio(rt_mean_ms(&report), rt_mean_ms(&yardstick)).into()),
                ("all_over_rt_only", ratio(throughput(&report), throughput(&yardstick)).into()),
                ("paper", of_workload(&workload.name, policy).into()),
            ]);
        }
    }
    Ok(rows)
}

/// What the paper says about a policy on a workload (§7.2).
fn of_workload(workload: &str, policy: &str) -> &'static str {
    match (workload, policy) {
        ("A" | "B", "sequential" | "streams") => "latency up to 1.95",
        ("A" | "B", "reef") => "latency up to 1.01, throughput up to 1.60",
        ("C" | "D" | "E", "streams") => "latency up to 3.31, throughput up to 8.19",
        ("C" | "D" | "E", "reef") => "latency up to 1.015, throughput above 3",
        ("REAL", "reef") => "latency below 1.02, throughput 7.7",
        _ => "",
    }
}

/// Figure 12: the latency of preemption on DISB's workloads (a), and by the preempted model (b).
pub(super) fn latencies(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut workloads = DISB.iter().map(|letter| runs.disb(letter)).collect::<Result<Vec<Workload>>>()?;
    let of_model = |model: &String| runs.workload(model, against(&[model.as_str()]));
    workloads.extend(runs.models.keys().map(of_model));
    let mut rows = Vec::new();
    for workload in &workloads {
        let [evicting, waiting] = PREEMPTION.map(|policy| runs.run(MI50, policy, workload));
        let (evicting, waiting) = (first_block_us(&evicting?), first_block_us(&waiting?));
        let published = ["below 40 µs", "15.3 to 18.5 times reset"];
        for ((policy, took), paper) in PREEMPTION.into_iter().zip([evicting, waiting]).zip(published) {
            rows.push(vec![
                ("preempted", workload.name.as_str().into()),
                ("policy", policy.into()),
                ("first_block_us", took.into()),
                ("over_reset", ratio(took, evicting).into()),
                ("paper", paper.into()),
            ]);
        }
    }
    Ok(rows)
}

/// A real-time client that preempts best-effort clients of some models.
fn against(models: &[&str]) -> Vec<atoll_sim::Client> {
    let numbered = models.iter().enumerate().map(|(number, model)| atoll_sim::Client {
        id: format!("{model} {number}"),
        ..client(Class::BestEffort, model, Load::Continuous)
    });
    std::iter::once(client(Class::RealTime, REAL_TIME, PREEMPTING)).chain(numbered).collect()
}

/// Figure 13: the latency of preemption by the number of launches in the device queue, which take
/// 100 µs each (a), and by the time that a launch takes, with four in the queue (b).
pub(super) fn growth(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let launches = [1, 2, 4, 8, 16, 32].map(|launches| (launches, 100));
    let times = [50, 200, 400, 800].map(|kernel_us| (4, kernel_us));
    let mut rows = Vec::new();
    for (launches, kernel_us) in launches.into_iter().chain(times) {
        let models = BTreeMap::from(
            [equal_kernels("preempting", 10, 20), equal_kernels("preempted", 100, kernel_us)]
                .map(|model| (model.name.clone(), model)),
        );
        let runs = Runs { models: &models, ..*runs };
        let clients = vec![
            client(Class::RealTime, "preempting", PREEMPTING),
            client(Class::BestEffort, "preempted", Load::Continuous),
        ];
        let workload = runs.workload("growth", clients);
        for policy in PREEMPTION {
            let report = runs.run_with(MI50, policy, &workload, launches)?;
            let paper = if policy == PREEMPTION[0] { "below 40 µs, constant" } else { "grows linearly" };
            rows.push(vec![
                ("launches", u64::from(launches).into()),
                ("kernel_us", kernel_us.into()),
                ("policy", policy.into()),
                ("first_block_us", first_block_us(&report).into()),
                ("paper", paper.into()),
            ]);
        }
    }
    Ok(rows)
}

/// A model of equal kernels, each of two blocks for every compute unit of an MI50, in turn.
fn equal_kernels(name: &str, kernels: usize, kernel_us: u64) -> Model {
    let profile = LaunchProfile::new(120, [kernel_us * 500]);
    let kernel = Arc::new(Kernel { name: "k".into(), profile });
    Model { name: name.to_owned(), kernels: vec![kernel; kernels].into(), before_ns: 0, after_ns: 0 }
}

/// Figure 14: the latency of preemption by the number of best-effort clients, and until device
/// queues are empty, with the default capacity and with queues of all launches. The simulator has
/// no host queues.
pub(super) fn queues(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for clients in [1, 2, 4, 8, 16] {
        let workload = runs.workload("clients", against(&vec!["resnet152-imagenet"; clients]));
        for capacity in [atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT, UNLIMITED] {
            let report = runs.run_with(MI50, "reset", &workload, capacity)?;
            let paper = if capacity == UNLIMITED { "device queues 424 µs" } else { "device queues 31 µs" };
            rows.push(vec![
                ("best_effort_clients", (clients as u64).into()),
                ("capacity", u64::from(capacity).into()),
                ("first_block_us", first_block_us(&report).into()),
                ("queues_empty_us", report.preemption.drain_us.mean.into()),
                ("paper", paper.into()),
            ]);
        }
    }
    Ok(rows)
}

/// Figure 15: by the capacity of device queues, the latency of preemption and the time of a model
/// alone; and the work of each model that is repeated after a preemption.
pub(super) fn capacities(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let (units, default) =
        (f64::from(MI50.parameters()?.compute_units), atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT);
    let mut rows = Vec::new();
    let mut row = |model: &str, capacity: u32, paper: &str| -> Result<()> {
        let alone = runs.workload("alone", vec![client(Class::BestEffort, model, Load::Continuous)]);
        let alone = runs.run_with(MI50, "reset", &alone, capacity)?.mean_latency_us(Class::BestEffort) / 1e3;
        let report = runs.run_with(MI50, "reset", &runs.workload("preempted", against(&[model])), capacity)?;
        let repeated_us = report.preemption.restore_us.unwrap_or(0.0) / units;
        rows.push(vec![
            ("model", model.into()),
            ("capacity", u64::from(capacity).into()),
            ("first_block_us", first_block_us(&report).into()),
            ("alone_ms", alone.into()),
            ("repeated_us", repeated_us.into()),
            ("repeated_over_alone", ratio(repeated_us / 1e3, alone).into()),
            ("paper", paper.into()),
        ]);
        Ok(())
    };
    for capacity in [1, 2, 4, 8, 16, 32, 64] {
        let paper = if capacity == 4 { "preemption about 30 µs, execution not slower" } else { "" };
        row("resnet152-imagenet", capacity, paper)?;
    }
    for model in runs.models.keys().filter(|model| *model != "resnet152-imagenet") {
        row(model, default, "restored in 70 to 245 µs, about 0.02 of the time")?;
    }
    Ok(rows)
}

/// Figure 20: the latency of preemption on a GPU that can stop running blocks, and on one that
/// cannot.
pub(super) fn devices(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for letter in DISB {
        let workload = runs.disb(letter)?;
        for (device, paper) in [(MI50, "half of the V100's"), (V100, "71 to 288 µs, waiting 6.3 to 12.3 times")] {
            let [evicting, waiting] = PREEMPTION.map(|policy| runs.run(device, policy, &workload));
            let (evicting, waiting) = (first_block_us(&evicting?), first_block_us(&waiting?));
            rows.push(vec![
                ("workload", letter.into()),
                ("device", device.0.into()),
                ("reset_us", evicting.into()),
                ("block_wait_us", waiting.into()),
                ("block_wait_over_reset", ratio(waiting, evicting).into()),
                ("paper", paper.into()),
            ]);
        }
    }
    Ok(rows)
}

/// GPREEMPT's table for an MI100: real-time latency over that alone, and throughput over sharing
/// without priorities, as means over DISB's workloads. Its REEF does not pad. It used other loads
/// under the same letters.
pub(super) fn mi100(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    const PUBLISHED: [(&str, &str); 5] = [
        ("streams", "latency 2.701, throughput 1"),
        ("sequential", "latency 3.979, throughput 0.531"),
        ("block-wait", "latency 1.435, throughput 0.657"),
        ("reset", "REEF: latency 1.132, throughput 0.724; GPREEMPT: 1.10, 0.822"),
        ("rt-only", "latency 1, throughput 0.388"),
    ];
    let (mut latency, mut all) = ([0.0; 5], [0.0; 5]);
    for letter in DISB {
        let workload = runs.disb(letter)?;
        let reports = PUBLISHED.map(|(policy, _)| runs.run(MI100, policy, &workload));
        let reports = reports.into_iter().collect::<Result<Vec<_>>>()?;
        let (alone, shared) = (rt_mean_ms(&reports[4]), throughput(&reports[0]));
        for (at, report) in reports.iter().enumerate() {
            latency[at] += ratio(rt_mean_ms(report), alone) / DISB.len() as f64;
            all[at] += ratio(throughput(report), shared) / DISB.len() as f64;
        }
    }
    let row = |at: usize| -> Cells {
        vec![
            ("policy", PUBLISHED[at].0.into()),
            ("rt_mean_over_rt_only", latency[at].into()),
            ("all_over_streams", all[at].into()),
            ("paper", PUBLISHED[at].1.into()),
        ]
    };
    Ok((0..PUBLISHED.len()).map(row).collect())
}
