//! `atoll bench scaling`

#[cfg(feature = "compiler")]
mod served;
#[cfg(feature = "compiler")]
mod zero;

use crate::drawing::{Axis, AxisScale, Line, plot};
use crate::engine::FleetArgs;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Context, Result};
use atoll_core::packing::Divisible;
use atoll_core::scaling::{Host, ScalingConfig};
use atoll_sim::scaling::{
    Controller, FunctionScaling, SHAPES, Sample, Scaled, ScaledFunction, ScalingReport, Shape, resnet_like,
    simulate_scaling,
};
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll bench scaling
  atoll bench scaling --load step,spike --seeds 1,2,3 --plot scaling.svg
  atoll bench scaling --devices 16 --functions 12 --high 200 --json
  atoll bench scaling --on daemon --device host:0@0 --device host:1@1 --low 5 --high 40

The oracle knows every request beforehand. In each interval it has the instances that answer all requests of \
the interval in time, and they start without delay. Its instances have the size that takes the least device \
time over the run.";

/// Throughput of a simulated function on a whole device, in thousandths of a request per second.
const WHOLE_DEVICE: u64 = 76_000;

/// Compute units and memory of a simulated device: a V100.
const DEVICE: (u32, u64) = (80, 16 << 30);

/// Constants of a simulated function: ResNet-50.
const CONSTANT_BYTES: u64 = 100 << 20;

/// Requests of a run, so that it fits memory.
const REQUESTS_MAX: f64 = 10e6;

/// Points of a line of the plot at most.
const POINTS_MAX: usize = 400;

/// Instances that follow loads which step, ramp and spike: missed targets, device time against an
/// oracle, and the time of a first request
///
/// Requests arrive in an open loop, as a Poisson process of a changing rate. On the simulated
/// cluster, functions are in the shape of ResNet in FaST-GShare's Fig. 8, and their loads are
/// shifted against each other. On a daemon, which this command starts for each run, one model is
/// loaded onto all devices.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How the load changes between --low and --high
    #[arg(long, value_enum, value_delimiter = ',', default_value = "step,ramp,spike")]
    load: Vec<LoadShape>,

    /// What runs the functions
    #[arg(long, value_enum, default_value_t = On::Sim)]
    on: On,

    /// Lowest rate of each function, in requests per second
    #[arg(long, value_name = "RATE", default_value_t = 10.0)]
    low: f64,

    /// Highest rate of each function, in requests per second
    #[arg(long, value_name = "RATE", default_value_t = 100.0)]
    high: f64,

    /// Duration of each run
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    seconds: u64,

    /// Seeds of arrivals, one run each
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,

    /// Target latency of requests, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 69, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    latency_ms: u64,

    /// Time between decisions, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(100..=86_400_000)
    )]
    interval_ms: u64,

    /// How long there must be a surplus before instances go, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(0..=86_400_000)
    )]
    cool_down_ms: u64,

    /// How long without a request until the last instance goes, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 20_000,
        value_parser = clap::value_parser!(u64).range(0..=86_400_000)
    )]
    idle_ms: u64,

    /// Capacity above the predicted load, in percent; if absent, recent requests decide how many
    /// instances there are
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=900))]
    headroom_percent: Option<u64>,

    /// Most instances of a function
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_instances: u32,

    /// Simulated devices
    #[arg(
        id = "simulated",
        long = "devices",
        value_name = "COUNT",
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    devices: u32,

    /// Simulated functions
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    functions: u32,

    /// How long a simulated instance takes to start, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=600_000))]
    start_ms: u64,

    /// How often a daemon's model gets a request after its instances are gone; each takes --idle-ms
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    from_zero: u32,

    /// Model of the daemon (.kg, .onnx, or the name of a built model)
    #[arg(long, value_name = "MODEL", default_value = "squeezenet")]
    model: String,

    /// Draw load and capacity over time, of the first seed
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    fleet: FleetArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LoadShape {
    /// High in the middle third
    Step,
    /// Rises to the middle, and falls again
    Ramp,
    /// High three times for a thirtieth
    Spike,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum On {
    /// A simulated cluster
    Sim,
    /// A daemon on the devices of --device
    Daemon,
}

impl LoadShape {
    fn shape(self) -> Shape {
        SHAPES[self as usize]
    }
}

/// A run.
#[derive(Debug, Serialize)]
struct Row {
    on: &'static str,
    load: &'static str,
    seed: u64,
    devices: u32,
    requests: u64,
    /// Requests that took longer than the target, or had no answer.
    misses: u64,
    miss_ratio: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// The longest latency of a request that found no instance; for a daemon, after the load.
    from_zero_ms: Option<f64>,
    /// Of a daemon: the largest difference of such a request from the request after it, which found
    /// the instance.
    from_zero_over_ms: Option<f64>,
    /// Of a daemon: the latency of the first request after it was started.
    first_request_ms: Option<f64>,
    /// Time of devices that was promised to instances, in seconds of a whole device.
    device_s: f64,
    /// The same of the oracle.
    oracle_device_s: f64,
    device_s_over_oracle: f64,
    /// Of a daemon: the ratio that the simulated autoscaler has on the same load, with the device
    /// time that requests took.
    simulated_over_oracle: Option<f64>,
    /// How long devices had instances, in seconds.
    used_device_s: f64,
    devices_max: u64,
    /// Instances that were created, or taken back into use while they drained; not known for a
    /// daemon.
    created: Option<u64>,
    /// Instances that moved; a daemon's log has them.
    moves: Option<u64>,
    /// What moves cost, in seconds of a device.
    move_cost_device_s: Option<f64>,
    /// How often no device had room; a daemon's metrics have it.
    refused: Option<u64>,
    #[serde(skip)]
    samples: Vec<Sample>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    check(args)?;
    let mut rows = Vec::new();
    for load in &args.load {
        for &seed in &args.seeds {
            rows.push(match args.on {
                On::Sim => simulated(args, load.shape(), seed),
                On::Daemon => served(args, load.shape(), seed)?,
            });
        }
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, picture(args, &rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Findings::new(&rows, table(&rows))
}

fn check(args: &Args) -> Result<()> {
    let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
    if !is_rate(args.low) || !is_rate(args.high) || args.high < args.low || args.high <= 0.0 {
        let (low, high) = (args.low, args.high);
        return Err(user_error(format!("--low {low} --high {high}: rates are 0 or more, and the second is higher")));
    }
    let requests = args.high * args.seconds as f64 * f64::from(args.functions);
    if requests > REQUESTS_MAX {
        return Err(user_error(format!("up to {requests:.0} requests are too many; at most {REQUESTS_MAX:.0} are")));
    }
    if args.seeds.is_empty() || args.load.is_empty() {
        return Err(user_error("--seeds and --load have at least one value"));
    }
    Ok(())
}

fn end_ns(args: &Args) -> u64 {
    args.seconds * 1_000_000_000
}

fn config(args: &Args) -> ScalingConfig {
    let ms = 1_000_000;
    ScalingConfig {
        slo_ns: args.latency_ms * ms,
        interval_ns: args.interval_ms * ms,
        headroom_percent: args.headroom_percent,
        cool_down_ns: args.cool_down_ms * ms,
        idle_ns: args.idle_ms * ms,
        cold_start_ns: args.start_ms * ms,
        min_instances: 0,
        max_instances: args.max_instances,
    }
}

fn host((units, bytes): (u32, u64)) -> Host {
    let divisible = Divisible { units, step: 1, lanes_max: 64 };
    Host { divisible, bytes, is_open: true, reserved: Vec::new() }
}

fn simulated(args: &Args, shape: Shape, seed: u64) -> Row {
    let function = |number: u32| ScaledFunction {
        name: format!("function-{}", number + 1),
        profile: resnet_like(WHOLE_DEVICE),
        config: config(args),
        constant_bytes: CONSTANT_BYTES,
        arrivals: shape.arrivals(
            args.low,
            args.high,
            end_ns(args),
            f64::from(number) / f64::from(args.functions),
            seed.wrapping_mul(1_000).wrapping_add(number.into()),
        ),
    };
    let setup = Scaled {
        hosts: vec![host(DEVICE); args.devices as usize],
        functions: (0..args.functions).map(function).collect(),
        end_ns: end_ns(args),
        start_ns: args.start_ms * 1_000_000,
        controller: Controller::Autoscaler,
    };
    let report = simulate_scaling(&setup);
    let oracle = simulate_scaling(&Scaled { controller: Controller::Oracle, ..setup });
    Row::of("sim", shape, seed, args.devices, &report, oracle.promised_device_s)
}

#[cfg(feature = "compiler")]
fn served(args: &Args, shape: Shape, seed: u64) -> Result<Row> {
    served::run(args, shape, seed)
}

#[cfg(not(feature = "compiler"))]
fn served(args: &Args, _: Shape, _: u64) -> Result<Row> {
    let (model, devices) = (&args.model, args.fleet.device_names().len());
    let _only_for_daemons = args.from_zero;
    Err(user_error(format!(
        "this program was built without the compiler, which --on daemon needs for {model} on {devices} devices; use \
         --on sim"
    )))
}

impl Row {
    fn of(on: &'static str, shape: Shape, seed: u64, devices: u32, report: &ScalingReport, oracle: f64) -> Row {
        let sum = |of: fn(&FunctionScaling) -> u64| report.functions.iter().map(of).sum::<u64>();
        let mut latencies: Vec<u64> =
            report.functions.iter().flat_map(|function| &function.latencies_ns).copied().collect();
        latencies.sort_unstable();
        let all = FunctionScaling { latencies_ns: latencies, ..FunctionScaling::default() };
        let ms = |ns: u64| ns as f64 / 1e6;
        Row {
            on,
            load: shape.name(),
            seed,
            devices,
            requests: sum(|function| function.requests),
            misses: sum(|function| function.misses),
            miss_ratio: report.miss_ratio(),
            p50_ms: ms(all.quantile_ns(0.5)),
            p99_ms: ms(all.quantile_ns(0.99)),
            from_zero_ms: report.functions.iter().filter_map(|function| function.from_zero_ns).max().map(ms),
            from_zero_over_ms: None,
            first_request_ms: None,
            device_s: report.promised_device_s,
            oracle_device_s: oracle,
            device_s_over_oracle: if oracle > 0.0 { report.promised_device_s / oracle } else { 0.0 },
            simulated_over_oracle: None,
            used_device_s: report.used_device_s,
            devices_max: report.devices_max,
            created: Some(sum(|function| function.created)),
            moves: Some(report.moves),
            move_cost_device_s: Some(report.move_cost_device_s),
            refused: Some(report.refused),
            samples: report.samples.clone(),
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ("load", Align::Left),
        ("seed", Align::Right),
        ("requests", Align::Right),
        ("missed", Align::Right),
        ("p50 ms", Align::Right),
        ("p99 ms", Align::Right),
        ("from zero ms", Align::Right),
        ("over warm", Align::Right),
        ("device-s", Align::Right),
        ("oracle", Align::Right),
        ("ratio", Align::Right),
        ("simulated", Align::Right),
        ("in use", Align::Right),
        ("devices", Align::Right),
        ("created", Align::Right),
        ("moves", Align::Right),
        ("refused", Align::Right),
    ]);
    let milliseconds = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1}"));
    let count = |count: Option<u64>| count.map_or_else(|| "-".into(), |count| count.to_string());
    for row in rows {
        table.row([
            row.load.into(),
            row.seed.to_string(),
            row.requests.to_string(),
            format!("{:.2} %", row.miss_ratio * 100.0),
            format!("{:.1}", row.p50_ms),
            format!("{:.1}", row.p99_ms),
            milliseconds(row.from_zero_ms),
            milliseconds(row.from_zero_over_ms),
            format!("{:.1}", row.device_s),
            format!("{:.1}", row.oracle_device_s),
            format!("{:.2}", row.device_s_over_oracle),
            row.simulated_over_oracle.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            format!("{:.1}", row.used_device_s),
            row.devices_max.to_string(),
            count(row.created),
            count(row.moves),
            count(row.refused),
        ]);
    }
    table
}

/// The rate of arrivals, dashed, and the capacity of instances over the run.
fn picture(args: &Args, rows: &[Row]) -> String {
    let first = args.seeds.first().copied();
    let mut lines = Vec::new();
    for (group, row) in rows.iter().filter(|row| Some(row.seed) == first).enumerate() {
        let every = row.samples.len().div_ceil(POINTS_MAX).max(1);
        let chunks = || row.samples.chunks(every);
        let at = |chunk: &[Sample]| chunk[0].at_ns as f64 / end_ns(args) as f64;
        let mean = |chunk: &[Sample], of: fn(&Sample) -> f64| {
            // A logarithmic axis has no 0.
            (chunk.iter().map(of).sum::<f64>() / chunk.len() as f64).max(0.1)
        };
        let line = |name: &str, dashed: bool, of: fn(&Sample) -> f64| Line {
            name: format!("{} {name}", row.load),
            group,
            dashed,
            points: chunks().map(|chunk| (at(chunk).min(1.0), mean(chunk, of))).collect(),
        };
        lines.push(line("load", true, |sample| sample.rate));
        lines.push(line("capacity", false, |sample| sample.capacity));
    }
    let axes = [
        Axis { title: "part of the run", scale: AxisScale::Share },
        Axis { title: "requests per second", scale: AxisScale::Fine },
    ];
    plot("Load and capacity of instances", axes, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(flags: &[&str]) -> Args {
        Program::parse_from([&["bench"][..], flags].concat()).args
    }

    #[test]
    fn runs_on_the_cluster_are_reported_with_the_oracle() {
        let args = parse(&["--seconds", "30", "--seeds", "1,2", "--functions", "2"]);
        let findings = run(&args).unwrap();
        let rows: serde_json::Value = serde_json::from_str(&findings.json).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            assert!(row["oracle_device_s"].as_f64().unwrap() > 0.0 && row["requests"].as_u64().unwrap() > 100, "{row}");
            assert!(row["from_zero_ms"].as_f64().unwrap() > 5.0, "{row}");
        }
        assert!(findings.text.contains("spike") && findings.text.contains("from zero ms"), "{}", findings.text);
        let rows: Vec<Row> = vec![simulated(&args, Shape::Ramp, 1)];
        let svg = picture(&args, &rows);
        assert!(svg.starts_with("<svg") && svg.contains("ramp capacity"), "{svg}");
    }

    #[test]
    fn loads_that_cannot_be_are_refused() {
        let refused = |flags: &[&str]| run(&parse(flags)).err().expect("refused").to_string();
        assert!(refused(&["--low", "5", "--high", "1"]).contains("--low 5 --high 1"));
        assert!(refused(&["--high", "nan"]).contains("rates are 0 or more"));
        assert!(refused(&["--high", "1000000"]).contains("too many"));
    }
}
