//! `atoll bench cluster`

mod decisions;
#[cfg(feature = "compiler")]
mod mixes;
mod replay;
mod scheduler;
mod thesis;
mod workload;

use crate::drawing::{Axis, AxisScale, Line, plot};
use crate::failure::OrUserError;
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Context, Result};
use atoll_core::placement::{PLACEMENTS, PlacementEntry, placement_by_name};
use atoll_sim::cluster::thesis::STEP_NS;
use atoll_sim::cluster::{Cluster, ClusterReport, FunctionReport, simulate_cluster};
use decisions::DecisionArgs;
use scheduler::{Scheduled, SchedulerArgs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;
use workload::{ArrivalKind, Fault, Point};

const EXAMPLES: &str = "\
Examples:
  atoll bench cluster --thesis
  atoll bench cluster --policy balance,srtf,cost --rate 0.32 --devices 4 --seeds 1,42
  atoll bench cluster --policy cost --devices 1,2,4,8 --rate 0.3 --cold 4,10 --run 2,8
  atoll bench cluster --policy cost,balance --clients 64 --fit 8 --devices 4 --arrivals bursts
  atoll bench cluster --policy cost --devices 4 --fail 100:2:300
  atoll bench cluster --arrivals azure --clients 200 --devices 1000 --rate 0.7
  atoll bench cluster --policy cost --clients 8 --real-time 2 --rate 0.08 --scheduler reset
  atoll bench cluster --policy cost --clients 8 --fit 4 --rate 0.05 --slots 2 --scheduler reset
  atoll bench cluster --decisions=250,1000,4000 --functions 200
  atoll bench cluster --replay run.json
  atoll bench cluster --mixes";

/// Compare placement policies on simulated clusters
///
/// Times are in steps of 1 ms. Each client calls one function. Service and reload times are known
/// to the policies unless --learn is given. A simulated device runs requests one after the other
/// for exactly their service times; with --scheduler it also runs the daemon's launch scheduler and
/// memory decisions.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the results of the KaaS scheduling thesis beside ours: the five traces, the Poisson runs
    /// and the sweeps of chapter 6, and Table 4.1 with FIFO and Clockwork
    #[arg(long)]
    thesis: bool,

    /// Replay the recorded mixes on four devices, each with memory for a fifth of all constants
    #[cfg(feature = "compiler")]
    #[arg(long, conflicts_with_all = ["thesis", "scheduler", "decisions"])]
    mixes: bool,

    /// Predict the latencies of a recorded run of leases, and compare their mean and 99th percentile
    /// with the measured ones. The file has `leases`, each with `node`, `service_ns` and
    /// `beside_ns`, and `requests`, each with `at_ns`, `lease` and `latency_ns`
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["thesis", "scheduler", "decisions", "trace"])]
    replay: Option<PathBuf>,

    /// Policies [default: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,

    /// Requests per step of each client; for azure, the offered load of each device. Several values
    /// are swept
    #[arg(long, value_delimiter = ',', default_value = "0.32")]
    rate: Vec<f64>,

    /// Devices, 1 to 10000. Several values are swept
    #[arg(long, value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    devices: Vec<u16>,

    /// Steps to load a function, for the clients in turn
    #[arg(long, value_name = "STEPS", value_delimiter = ',', default_value = "4,10")]
    cold: Vec<u64>,

    /// Steps to run a function, for the clients in turn
    #[arg(long, value_name = "STEPS", value_delimiter = ',', default_value = "2,8")]
    run: Vec<u64>,

    /// Clients
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,

    /// Steps in which requests arrive
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    steps: u64,

    /// The first clients send real-time requests, the others best-effort ones
    #[arg(long, value_name = "CLIENTS", default_value_t = 0)]
    real_time: u32,

    /// Seeds of arrivals and random policies, one run each
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,

    /// How requests arrive
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson)]
    arrivals: ArrivalKind,

    /// File with a recorded trace: lines of a step and the index of a client, ascending
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arrivals", "rate"])]
    trace: Option<PathBuf>,

    /// Functions that fit the memory of a device [default: all]
    #[arg(long, value_name = "FUNCTIONS")]
    fit: Option<u32>,

    /// Best-effort requests in flight on a device
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: u32,

    /// Lose a device at a step; with a second step, it comes back then
    #[arg(long, value_name = "STEP:DEVICE[:STEP]")]
    fail: Vec<Fault>,

    /// Policies learn service and reload times
    #[arg(long)]
    learn: bool,

    /// `exclusive` never moves a device from one client to another
    #[arg(long)]
    no_steal: bool,

    /// Draw the mean waits of a sweep over rates or devices
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    scheduler: SchedulerArgs,

    #[command(flatten)]
    decisions: DecisionArgs,
}

/// The placement policies with these names; all if there are none.
pub(super) fn policies(names: &[String]) -> Result<Vec<&'static PlacementEntry>> {
    if names.is_empty() {
        return Ok(PLACEMENTS.iter().collect());
    }
    let find = |name: &String| {
        placement_by_name(name).with_context(|| {
            let known: Vec<&str> = PLACEMENTS.iter().map(|entry| entry.name).collect();
            format!("there is no placement policy `{name}`; the policies are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if args.thesis {
        return thesis::run();
    }
    if let Some(path) = &args.replay {
        return replay::run(path).or_user_error();
    }
    let policies = policies(&args.policy).or_user_error()?;
    if args.decisions.is_given() {
        return args.decisions.run(&policies, args.seeds.first().copied().unwrap_or(1));
    }
    #[cfg(feature = "compiler")]
    if args.mixes {
        return mixes::run(&policies);
    }
    let node = args.scheduler.setup().or_user_error()?;
    workload::check_faults(args).or_user_error()?;
    let mut rows = Vec::new();
    for &devices in &args.devices {
        for &rate in &args.rate {
            for &seed in &args.seeds {
                let point = Point { devices, rate, seed };
                let workload = workload::of(args, point).or_user_error()?;
                for policy in &policies {
                    let cluster = workload::cluster(args, point, policy, &workload);
                    let scheduled = node.map(|setup| Scheduled::run(&cluster, setup));
                    rows.push(Row { scheduled, ..Row::run(point, &cluster) });
                }
            }
        }
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, picture(args, &rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let table = if node.is_some() { scheduler::table(&rows) } else { table(&rows) };
    Findings::new(&rows.iter().map(Row::json).collect::<Vec<_>>(), table)
}

/// A run.
struct Row {
    point: Point,
    policy: &'static str,
    report: ClusterReport,
    /// Wall-clock time of the simulation, pool included.
    wall_s: f64,
    /// The same with the launch scheduler.
    scheduled: Option<Scheduled>,
}

fn steps(ns: f64) -> f64 {
    ns / STEP_NS as f64
}

impl Row {
    fn run(point: Point, cluster: &Cluster) -> Row {
        let begin = Instant::now();
        let report = simulate_cluster(cluster);
        let wall_s = begin.elapsed().as_secs_f64();
        Row { point, policy: cluster.pool.policy.name, report, wall_s, scheduled: None }
    }

    fn json(&self) -> Value {
        let mut json = results(&self.report, self.wall_s);
        json["policy"] = self.policy.into();
        json["devices"] = self.point.devices.into();
        json["rate"] = self.point.rate.into();
        json["seed"] = self.point.seed.into();
        if let Some(scheduled) = &self.scheduled {
            json["scheduler"] = scheduled.json(self);
        }
        json
    }
}

/// The results of a simulation that took `wall_s`, with times in steps.
fn results(report: &ClusterReport, wall_s: f64) -> Value {
    let class = |function: &FunctionReport| {
        json!({
            "name": function.name,
            "jobs": function.waits.jobs,
            "mean_wait": steps(function.waits.mean_wait_ns),
            "p99_wait": steps(function.waits.p99_wait_ns as f64),
            "mean_completion": steps(function.waits.mean_completion_ns),
            "p99_completion": steps(function.waits.p99_completion_ns as f64),
        })
    };
    json!({
        "jobs": report.waits.jobs,
        "total": steps(report.total_ns as f64),
        "cold": report.cold,
        "mean_wait": steps(report.waits.mean_wait_ns),
        "p99_wait": steps(report.waits.p99_wait_ns as f64),
        "mean_completion": steps(report.waits.mean_completion_ns),
        "p99_completion": steps(report.waits.p99_completion_ns as f64),
        "loads": report.loads,
        "evictions": report.evictions,
        "moves": report.moves,
        "retries": report.retries,
        "rejected": report.rejected,
        "wall_s": wall_s,
        "dispatches_per_s": report.dispatches as f64 / wall_s,
        "per_class": report.functions.iter().map(class).collect::<Vec<_>>(),
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ("devices", Align::Right),
        ("rate", Align::Right),
        ("seed", Align::Right),
        ("policy", Align::Left),
        ("jobs", Align::Right),
        ("total", Align::Right),
        ("cold", Align::Right),
        ("mean wait", Align::Right),
        ("p99 wait", Align::Right),
        ("completion", Align::Right),
        ("moves", Align::Right),
        ("retries", Align::Right),
    ]);
    for row in rows {
        let report = &row.report;
        table.row([
            row.point.devices.to_string(),
            row.point.rate.to_string(),
            row.point.seed.to_string(),
            row.policy.into(),
            report.waits.jobs.to_string(),
            format!("{:.0}", steps(report.total_ns as f64)),
            report.cold.to_string(),
            format!("{:.4}", steps(report.waits.mean_wait_ns)),
            format!("{:.2}", steps(report.waits.p99_wait_ns as f64)),
            format!("{:.4}", steps(report.waits.mean_completion_ns)),
            report.moves.to_string(),
            report.retries.to_string(),
        ]);
    }
    table
}

/// Mean waits by rate, or by devices if these are swept.
fn picture(args: &Args, rows: &[Row]) -> String {
    let by_devices = args.devices.len() > 1;
    let mut lines: BTreeMap<&str, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
    for row in rows {
        let x = if by_devices { f64::from(row.point.devices) } else { row.point.rate };
        let waits = lines.entry(row.policy).or_default().entry(x.to_bits()).or_default();
        waits.push(steps(row.report.waits.mean_wait_ns));
    }
    let line = |(group, (name, points)): (usize, (&str, BTreeMap<u64, Vec<f64>>))| Line {
        name: name.into(),
        group,
        dashed: false,
        // A logarithmic axis has no 0.
        points: points
            .into_iter()
            .map(|(x, waits)| (f64::from_bits(x), (waits.iter().sum::<f64>() / waits.len() as f64).max(0.01)))
            .collect(),
    };
    let x = if by_devices { "devices" } else { "requests per step and client" };
    let axes =
        [Axis { title: x, scale: AxisScale::Fine }, Axis { title: "mean wait in steps", scale: AxisScale::Decimal }];
    plot("Mean wait by placement policy", axes, &lines.into_iter().enumerate().map(line).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn rows(flags: &str) -> Vec<Value> {
        let cli = Cli::try_parse_from(format!("cluster {flags}").split(' ')).unwrap();
        serde_json::from_str(&run(&cli.args).unwrap().json).unwrap()
    }

    #[test]
    fn the_launch_scheduler_costs_latencies_beside_the_plain_model() {
        for row in rows("--policy balance,cost --clients 2 --steps 300 --rate 0.1 --scheduler reset --launches 5") {
            let scheduled = &row["scheduler"];
            assert_eq!((&scheduled["jobs"], &scheduled["rejected"]), (&row["jobs"], &json!(0)));
            let jobs = row["jobs"].as_u64().unwrap();
            assert!(jobs > 30, "{jobs}");
            assert_eq!((&scheduled["launches"], &scheduled["preemptions"]), (&json!(5 * jobs), &json!(0)));
            let change = scheduled["mean_completion_change"].as_f64().unwrap();
            // 8 µs for requests of 2 and 8 ms, and the devices that later requests find free.
            assert!(change != 0.0 && change.abs() < 0.3, "{change}");
        }
    }

    #[test]
    fn memory_decisions_evict_what_does_not_fit_under_the_launch_scheduler() {
        let evictions = |fit: u32| {
            let rows = rows(&format!(
                "--policy cost --clients 4 --fit {fit} --devices 1 --rate 0.01 --scheduler reset --request-bytes 999"
            ));
            let memory = &rows[0]["scheduler"]["memory"];
            assert_eq!(rows[0]["scheduler"]["jobs"], rows[0]["jobs"]);
            let bytes = |name: &str| memory[name].as_u64().unwrap();
            assert_eq!(bytes("loaded_bytes"), bytes("evicted_bytes") + bytes("held_bytes"));
            assert!(bytes("used_bytes_max") > bytes("held_bytes"), "requests have memory of their own: {memory}");
            assert_eq!(memory["evictions"], rows[0]["scheduler"]["evictions"]);
            bytes("evictions")
        };
        assert_eq!(evictions(4), 0);
        assert!(evictions(2) > 0);
    }

    #[test]
    fn a_fault_of_a_device_that_no_run_has_is_refused() {
        let run_with = |flags: &str| {
            let cli = Cli::try_parse_from(format!("cluster --policy cost --steps 20 {flags}").split(' ')).unwrap();
            run(&cli.args).map(drop).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(run_with("--devices 2,4 --fail 5:3"), Ok(()), "one run has it");
        let error = run_with("--devices 2,4 --fail 5:4").unwrap_err();
        assert!(error.contains("--fail names device 4; with --devices 4 the last one is 3"), "{error}");
    }

    /// The shape of KaaS's comparison: many functions, all of which fit into the memory of the devices.
    #[test]
    fn throughput_with_many_functions_stays_under_cost_and_collapses_under_exclusive() {
        let throughput = |policy: &str, clients: u32, steps: u32| {
            let rate = 1.2 / f64::from(clients);
            let rows = rows(&format!(
                "--policy {policy} --clients {clients} --fit 13 --devices 4 --rate {rate} --steps {steps} --cold 30 \
                 --run 4"
            ));
            rows[0]["jobs"].as_f64().unwrap() / rows[0]["total"].as_f64().unwrap()
        };
        // So long that the first load of each function is a small part of the time.
        let (few, many) = (throughput("cost", 4, 16_000), throughput("cost", 32, 16_000));
        assert!(many >= 0.95 * few, "cost: {many} after {few}");
        let (few, many) = (throughput("exclusive", 4, 3_000), throughput("exclusive", 32, 3_000));
        assert!(many < 0.5 * few, "exclusive: {many} after {few}");
    }

    #[test]
    fn decisions_are_measured_for_each_pool() {
        let flags = "cluster --policy cost,balance --decisions=8,32 --functions 5 --placements 50";
        let cli = Cli::try_parse_from(flags.split(' ')).unwrap();
        let json: Value = serde_json::from_str(&run(&cli.args).unwrap().json).unwrap();
        let pools: Vec<_> = json["pools"].as_array().unwrap().iter().map(|p| (&p["policy"], &p["devices"])).collect();
        let (cost, balance) = (json!("cost"), json!("balance"));
        assert_eq!(pools, [(&cost, &json!(8)), (&cost, &json!(32)), (&balance, &json!(8)), (&balance, &json!(32))]);
        assert!(json["pools"][0]["decisions"].as_u64().unwrap() >= 25, "{json}");
        assert_eq!(json["growth"].as_array().unwrap().len(), 2);
        let cli = Cli::try_parse_from(["cluster", "--decisions"]).unwrap();
        assert!(cli.args.decisions.is_given(), "1000 devices are the default");
        assert!(Cli::try_parse_from(["cluster", "--decisions=0"]).is_err());
    }

    #[test]
    fn real_time_clients_preempt_the_others_under_the_launch_scheduler() {
        let rows = rows("--policy cost --clients 4 --real-time 1 --devices 2 --rate 0.06 --run 4 --scheduler reset");
        let preemptions = rows[0]["scheduler"]["preemptions"].as_u64().unwrap();
        assert!(preemptions > 0, "{rows:?}");
        assert_eq!(rows[0]["scheduler"]["jobs"], rows[0]["jobs"]);
    }
}
