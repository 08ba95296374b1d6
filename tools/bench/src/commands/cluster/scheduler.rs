//! `atoll bench cluster --scheduler`: the daemon's launch scheduler and memory decisions on each
//! simulated device, beside the plain model of a device.

use super::{Row, results, steps};
use crate::engine::policy_names;
use crate::output::{Align, Table};
use anyhow::{Context, Result};
use atoll_core::policy_by_name;
use atoll_sim::cluster::{
    Cluster, ClusterReport, LaunchReport, MemoryReport, MemorySetup, NodeModel, NodeSetup, simulate_cluster,
};
use atoll_sim::{DEVICES, device_by_name};
use clap::builder::PossibleValue;
use serde_json::{Value, json};
use std::time::Instant;

/// Launches that a device queue holds: the daemon's default, except on NVIDIA GPUs.
const QUEUE_CAPACITY: u32 = 4;
/// Rounds of blocks in a launch, unless --blocks is given.
const ROUNDS: u32 = 4;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Launch scheduler")]
pub(super) struct SchedulerArgs {
    /// Simulate each run a second time with the daemon's launch scheduler and memory decisions on
    /// every device, under this scheduling policy, and print how the results and the time of the
    /// simulation change
    #[arg(long, value_name = "POLICY", value_parser = policy_names(), conflicts_with = "thesis")]
    scheduler: Option<String>,

    /// Simulated device of --scheduler
    #[arg(long, value_name = "DEVICE", default_value = "v100", value_parser = device_names())]
    node: String,

    /// Launches of a request, with --scheduler
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    launches: u32,

    /// Blocks of a launch, with --scheduler. Fewer than the device has compute units leave some of
    /// these to other requests [default: four for each compute unit]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    blocks: Option<u32>,

    /// Memory of a request while it runs, with --scheduler. A device has it for as many requests as
    /// it has slots, beside the memory for functions
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 4096,
        value_parser = clap::value_parser!(u64).range(1..=1 << 40)
    )]
    request_bytes: u64,
}

/// Parser of the names of simulated devices.
fn device_names() -> clap::builder::PossibleValuesParser {
    DEVICES.iter().map(|device| PossibleValue::new(device.name).help(device.about)).into()
}

impl SchedulerArgs {
    /// The launch scheduler of each device; `None` if --scheduler is not given.
    pub(super) fn setup(&self) -> Result<Option<NodeSetup>> {
        let Some(name) = &self.scheduler else { return Ok(None) };
        let policy = policy_by_name(name).with_context(|| format!("there is no policy `{name}`"))?;
        let device = *device_by_name(&self.node).with_context(|| format!("there is no device `{}`", self.node))?;
        let blocks = self.blocks.unwrap_or(ROUNDS * device.compute_units);
        let memory = MemorySetup { request_bytes: self.request_bytes, quota_bytes: None };
        Ok(Some(NodeSetup { policy, device, queue_capacity: QUEUE_CAPACITY, launches: self.launches, blocks, memory }))
    }
}

/// A run with the launch scheduler.
pub(super) struct Scheduled {
    setup: NodeSetup,
    report: ClusterReport,
    wall_s: f64,
}

impl Scheduled {
    /// Runs the same cluster with the launch scheduler on each device.
    pub(super) fn run(cluster: &Cluster, setup: NodeSetup) -> Scheduled {
        let cluster = Cluster { node: NodeModel::Scheduler(setup), ..cluster.clone() };
        let begin = Instant::now();
        let report = simulate_cluster(&cluster);
        Scheduled { setup, report, wall_s: begin.elapsed().as_secs_f64() }
    }

    fn launches(&self) -> LaunchReport {
        self.report.launches.unwrap_or_default()
    }

    fn memory(&self) -> MemoryReport {
        self.report.memory.unwrap_or_default()
    }

    /// The results, and how they differ from those of the plain model.
    pub(super) fn json(&self, plain: &Row) -> Value {
        let mut json = results(&self.report, self.wall_s);
        let [mean, p99] = self.changes(plain);
        let launches = self.launches();
        json["policy"] = self.setup.policy.name.into();
        json["device"] = self.setup.device.name.into();
        json["launches_of_request"] = self.setup.launches.into();
        json["blocks_of_launch"] = self.setup.blocks.into();
        json["launches"] = launches.launches.into();
        json["preemptions"] = launches.preemptions.into();
        json["evicted_launches"] = launches.evicted_launches.into();
        json["padded_launches"] = launches.padded_launches.into();
        let memory = self.memory();
        json["memory"] = json!({
            "request_bytes": self.setup.memory.request_bytes,
            "loads": memory.loads,
            "loaded_bytes": memory.loaded_bytes,
            "copied_bytes": memory.copied_bytes,
            "evictions": memory.evictions,
            "evicted_bytes": memory.evicted_bytes,
            "held_bytes": memory.held_bytes,
            "used_bytes_max": memory.used_bytes_max,
        });
        json["mean_completion_change"] = json!(mean);
        json["p99_completion_change"] = json!(p99);
        json["wall_ratio"] = json!(self.wall_s / plain.wall_s);
        json
    }

    /// Relative changes of the mean completion time and of its 99th percentile; `None` if the plain
    /// model answered no request.
    fn changes(&self, plain: &Row) -> [Option<f64>; 2] {
        let (ours, theirs) = (&self.report.waits, &plain.report.waits);
        [
            change(ours.mean_completion_ns, theirs.mean_completion_ns),
            change(ours.p99_completion_ns as f64, theirs.p99_completion_ns as f64),
        ]
    }
}

fn change(to: f64, from: f64) -> Option<f64> {
    (from > 0.0).then(|| to / from - 1.0)
}

/// A relative change in percent.
fn percent(change: Option<f64>) -> String {
    change.map_or("-".into(), |change| format!("{:+.2} %", change * 100.0))
}

/// Both models of each run, side by side.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ("devices", Align::Right),
        ("rate", Align::Right),
        ("seed", Align::Right),
        ("policy", Align::Left),
        ("completion", Align::Right),
        ("scheduler", Align::Right),
        ("change", Align::Right),
        ("p99", Align::Right),
        ("scheduler", Align::Right),
        ("change", Align::Right),
        ("evictions", Align::Right),
        ("scheduler", Align::Right),
        ("launches", Align::Right),
        ("preemptions", Align::Right),
        ("run s", Align::Right),
        ("scheduler", Align::Right),
    ]);
    for row in rows {
        let Some(scheduled) = &row.scheduled else { continue };
        let (plain, ours) = (&row.report.waits, &scheduled.report.waits);
        let [mean, p99] = scheduled.changes(row).map(percent);
        table.row([
            row.point.devices.to_string(),
            row.point.rate.to_string(),
            row.point.seed.to_string(),
            row.policy.into(),
            format!("{:.4}", steps(plain.mean_completion_ns)),
            format!("{:.4}", steps(ours.mean_completion_ns)),
            mean,
            format!("{:.2}", steps(plain.p99_completion_ns as f64)),
            format!("{:.2}", steps(ours.p99_completion_ns as f64)),
            p99,
            row.report.evictions.to_string(),
            scheduled.memory().evictions.to_string(),
            scheduled.launches().launches.to_string(),
            scheduled.launches().preemptions.to_string(),
            format!("{:.3}", row.wall_s),
            format!("{:.3}", scheduled.wall_s),
        ]);
    }
    table
}
