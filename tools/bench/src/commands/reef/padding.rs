//! Padding: figures 16 to 19.

use super::runs::{MI50, Runs, client, ratio, rt_mean_ms, throughput};
use crate::figures::Cells;
use anyhow::Result;
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_core::padding::Padding;
use atoll_core::{Class, LaunchProfile, PaddingOptions};
use atoll_proxy_kernels::AmdModel;
use atoll_sim::{DISB, Load, Model, Report, Workload};
use std::hint::black_box;
use std::time::Instant;

/// Schemes of concurrent execution, the baseline first.
const SCHEMES: [&str; 4] = ["rt-only", "sequential", "streams", "reef"];

/// Delays by padding, in thousandths of the time of a real-time call; the first one is none.
const DELAYS: [u32; 3] = [0, 10, 50];

/// Decisions that are timed together.
const DECISIONS: u32 = 200;

/// Candidates of a decision: as many as REEF's queues hold.
const CANDIDATES: usize = 4;

/// Most bytes of an instruction of a proxy: an opcode and a literal.
const INSTRUCTION_BYTES_MAX: u64 = 8;

/// Two models in closed loops, the first real-time.
fn pair(runs: &Runs<'_>, real_time: &str, best_effort: &str) -> Workload {
    let clients = vec![
        client(Class::RealTime, real_time, Load::Continuous),
        client(Class::BestEffort, best_effort, Load::Continuous),
    ];
    runs.workload("pair", clients)
}

/// The report of each pair of models under some policies.
fn of_pairs<const N: usize>(runs: &Runs<'_>, policies: [&str; N]) -> Result<Vec<(String, String, Vec<Report>)>> {
    let mut all = Vec::new();
    for real_time in runs.models.keys() {
        for best_effort in runs.models.keys() {
            let workload = pair(runs, real_time, best_effort);
            let reports =
                policies.iter().map(|policy| runs.run(MI50, policy, &workload)).collect::<Result<Vec<Report>>>()?;
            all.push((real_time.clone(), best_effort.clone(), reports));
        }
    }
    Ok(all)
}

/// Figure 16: latency and throughput of pairs of models.
pub(super) fn pairs(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for (real_time, best_effort, reports) in of_pairs(runs, SCHEMES)? {
        let alone = &reports[0];
        for (policy, report) in SCHEMES.into_iter().zip(&reports) {
            let paper = if policy == "reef" { "latency 1.01 on average" } else { "" };
            rows.push(vec![
                ("real_time", real_time.as_str().into()),
                ("best_effort", best_effort.as_str().into()),
                ("policy", policy.into()),
                ("rt_mean_over_rt_only", ratio(rt_mean_ms(report), rt_mean_ms(alone)).into()),
                ("all_over_rt_only", ratio(throughput(report), throughput(alone)).into()),
                ("paper", paper.into()),
            ]);
        }
    }
    Ok(rows)
}

/// Delay of a padded launch that the paper counts as small.
const SMALL_NS: u64 = 4_000;

/// Figure 17: the mean share of compute units in use, without and with padding; and how many of the
/// padded launches take at most 4 µs longer than alone.
pub(super) fn utilisation(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let row = |(real_time, best_effort, reports): (String, String, Vec<Report>)| -> Cells {
        vec![
            ("real_time", real_time.as_str().into()),
            ("best_effort", best_effort.as_str().into()),
            ("rt_only", reports[0].utilisation.into()),
            ("padded", reports[1].utilisation.into()),
            ("padded_launches", reports[1].padded_launches.into()),
            ("part_below_4_us_slower", part_below(&reports[1].padding_delays_ns, SMALL_NS).into()),
            ("paper", "0.9 of the launches less than 4 µs slower".into()),
        ]
    };
    Ok(of_pairs(runs, ["rt-only", "reef"])?.into_iter().map(row).collect())
}

/// The part of the values that are below a limit; all of them if there are none.
fn part_below(values: &[u64], limit: u64) -> f64 {
    let below = values.iter().filter(|value| **value < limit).count();
    if values.is_empty() { 1.0 } else { below as f64 / values.len() as f64 }
}

/// Longer blocks beside real-time launches: on each of DISB's workloads, the latency of real-time
/// calls and the throughput of best-effort ones, by the delay that padding may add.
pub(super) fn longer(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for letter in DISB {
        let workload = runs.disb(letter)?;
        let alone = rt_mean_ms(&runs.run(MI50, "rt-only", &workload)?);
        let mut strict = None;
        for delay_permille in DELAYS {
            let options = PaddingOptions { delay_permille, ..PaddingOptions::default() };
            let report = runs.run_padded(MI50, "reef", &workload, DEVICE_QUEUE_CAPACITY_DEFAULT, options)?;
            let best_effort = report.throughput(Class::BestEffort);
            rows.push(vec![
                ("workload", letter.into()),
                ("delay_permille", u64::from(delay_permille).into()),
                ("rt_mean_over_rt_only", ratio(rt_mean_ms(&report), alone).into()),
                ("be_over_no_delay", ratio(best_effort, *strict.get_or_insert(best_effort)).into()),
                ("padded_launches", report.padded_launches.into()),
                ("padding_blocks", report.padding_blocks.into()),
                ("paper", "left for later work".into()),
            ]);
        }
    }
    Ok(rows)
}

/// Selection by the memory bandwidth of kernels, which is estimated from their tensors: on each of
/// DISB's workloads, by REEF's rules and with bandwidth. Launches and padding that need more than
/// the device's bandwidth take longer in both.
pub(super) fn bandwidth(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let mut rows = Vec::new();
    for letter in DISB {
        let workload = runs.disb(letter)?;
        let alone = rt_mean_ms(&runs.run(MI50, "rt-only", &workload)?);
        let mut by_rules = None;
        for (selection, bandwidth) in [("rules", false), ("rules and bandwidth", true)] {
            let options = PaddingOptions { bandwidth, ..PaddingOptions::default() };
            let report = runs.run_padded(MI50, "reef", &workload, DEVICE_QUEUE_CAPACITY_DEFAULT, options)?;
            let best_effort = report.throughput(Class::BestEffort);
            rows.push(vec![
                ("workload", letter.into()),
                ("selection", selection.into()),
                ("rt_mean_over_rt_only", ratio(rt_mean_ms(&report), alone).into()),
                ("be_over_rules", ratio(best_effort, *by_rules.get_or_insert(best_effort)).into()),
                ("padded_launches", report.padded_launches.into()),
                ("part_below_4_us_slower", part_below(&report.padding_delays_ns, SMALL_NS).into()),
                ("paper", "left for later work".into()),
            ]);
        }
    }
    Ok(rows)
}

/// Figure 18: the proxy kernels of each architecture, and the size of their code with one candidate
/// each. The time that padding adds to a kernel is an input of the simulation (`bench disb --cost
/// padding=X`); `bench dkp` measures it.
pub(super) fn proxies() -> Vec<Cells> {
    let row = |model: &AmdModel| -> Cells {
        let levels = model.levels().len() as u64;
        let instructions = model.proxy_instructions(1) as u64;
        let paper = match model.architecture {
            "gfx906" => "10 instead of 32,768; 10 KB instead of 35 GB; time 0.8 % instead of up to 503 %",
            _ => "",
        };
        vec![
            ("architecture", model.architecture.into()),
            ("proxy_kernels", levels.into()),
            ("instructions_of_each", instructions.into()),
            ("bytes_at_most", (levels * instructions * INSTRUCTION_BYTES_MAX).into()),
            ("paper", paper.into()),
        ]
    };
    AmdModel::ALL.iter().map(row).collect()
}

/// Figure 19: the time of a decision about the padding of each kernel of a model, with kernels of
/// another as candidates: median and longest over the kernels, each the mean of some repetitions.
pub(super) fn selection(runs: &Runs<'_>) -> Result<Vec<Cells>> {
    let units = MI50.parameters()?.compute_units;
    let mut rows = Vec::new();
    for (real_time, model) in runs.models {
        for (best_effort, other) in runs.models {
            let candidates: Vec<&LaunchProfile> = kernels(other).collect();
            let mut times: Vec<f64> = kernels(model).map(|launch| time(launch, &candidates, units)).collect();
            times.sort_by(f64::total_cmp);
            rows.push(vec![
                ("real_time", real_time.as_str().into()),
                ("best_effort", best_effort.as_str().into()),
                ("decision_us_p50", times.get(times.len() / 2).copied().unwrap_or(0.0).into()),
                ("decision_us_max", times.last().copied().unwrap_or(0.0).into()),
                ("paper", "0.2 to 0.4 µs".into()),
            ]);
        }
    }
    Ok(rows)
}

fn kernels(model: &Model) -> impl Iterator<Item = &LaunchProfile> {
    model.kernels.iter().map(|kernel| &kernel.profile)
}

/// The mean time of a decision in microseconds.
fn time(launch: &LaunchProfile, candidates: &[&LaunchProfile], compute_units: u32) -> f64 {
    let begin = Instant::now();
    for decision in 0..DECISIONS as usize {
        let mut padding = Padding::of(black_box(launch), compute_units);
        let queue = candidates.iter().cycle().skip(decision % candidates.len().max(1)).take(CANDIDATES);
        for candidate in queue {
            if !padding.has_room() {
                break;
            }
            black_box(padding.take(candidate, 0));
        }
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(DECISIONS)
}
