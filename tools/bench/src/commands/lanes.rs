//! `atoll bench lanes`

use super::load::{ClosedLoop, Workload, arrivals};
use crate::artifact;
use crate::device_name::DeviceName;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::{Context, Result, ensure};
use atoll_device::cpus;
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{Class, Engine, EngineConfig, EngineHandle, LaneId, LaneSpec};
use atoll_kgraph::Bundle;
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll bench lanes --rt squeezenet.kg --hog resnet18.kg
  atoll bench lanes --rt squeezenet.kg --hog resnet18.kg --rate 100 --duration 20 --rounds 5 --json

Both variants share caches and memory, so a difference between them is caused by the device.";

/// The line that the other process prints when its load is running.
const READY: &str = "ready";

/// Measure real-time requests in a lane of one compute unit beside a load in another lane, and on a
/// device of one compute unit beside the same load in another process, alternately
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model of the real-time requests (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    rt: PathBuf,

    /// Model of the load, invoked without pauses (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    hog: PathBuf,

    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,

    /// Real-time requests per second, at equal intervals
    #[arg(long, value_name = "PER_SECOND", default_value_t = 50.0)]
    rate: f64,

    /// Number of measurements of both variants
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::new(3).expect("not zero"))]
    rounds: NonZeroU32,

    /// Seed of inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Keep a model busy on one CPU until standard input closes
#[derive(Debug, clap::Args)]
pub(crate) struct HogArgs {
    /// Model (.kg or .onnx)
    model: PathBuf,

    /// CPU to use
    cpu: usize,

    /// Seed of inputs
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    /// The CPU of the real-time requests, and that of the load.
    cpus: [usize; 2],
    lanes: Vec<Distribution>,
    processes: Vec<Distribution>,
    /// Median of the rounds with lanes over that of the rounds with processes.
    p50_ratio: f64,
    p99_ratio: f64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if !(args.rate > 0.0 && args.rate <= 1e6 && args.duration > 0.0 && args.duration <= 86_400.0) {
        return Err(user_error(
            "--rate must be above 0 and at most 1000000 per second, --duration above 0 and at most 86400 seconds",
        ));
    }
    let [first, second, ..] = cpus::allowed()[..] else {
        return Err(user_error("two lanes need two CPUs, but this process may use fewer"));
    };
    let (rt, hog) = (artifact::open(&args.rt, DeviceName::Host)?, artifact::open(&args.hog, DeviceName::Host)?);
    let (mut lanes, mut processes) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.get() {
        lanes.push(in_lanes(args, [first, second], &rt, &hog)?);
        processes.push(in_processes(args, [first, second], &rt)?);
    }
    let ratio = |of: fn(&Distribution) -> f64| median(&lanes, of) / median(&processes, of);
    let (p50_ratio, p99_ratio) = (ratio(|d| d.p50_ms), ratio(|d| d.p99_ms));
    let report = Report { cpus: [first, second], lanes, processes, p50_ratio, p99_ratio };
    Findings::new(&report, text(&report))
}

/// An engine on a host device with these CPUs.
fn engine(cpus: &[usize]) -> Result<Engine> {
    let config = HostConfig { compute_units: cpus.len() as u32, cpus: cpus.to_vec(), ..HostConfig::default() };
    Ok(Engine::start(Box::new(HostDevice::start(config)?), EngineConfig::default())?)
}

/// Real-time requests on the first compute unit of a device, and the load on its second one.
fn in_lanes(args: &Args, cpus: [usize; 2], rt: &Arc<Bundle>, hog: &Arc<Bundle>) -> Result<Distribution> {
    let engine = engine(&cpus)?;
    let handle = engine.handle();
    let [own, other] = [0, 1].map(|unit| handle.open_lane(LaneSpec { units: vec![unit], queues: 2 }));
    let rt = Workload::load_into(&handle, "rt", rt, Class::RealTime, args.seed, own?.id)?;
    let hog = keep_busy(&handle, hog, args.seed, other?.id)?;
    let found = measure(args, &rt);
    hog.stop();
    engine.shutdown();
    found
}

/// Real-time requests on a device of one compute unit, and the load in a process on the other CPU.
fn in_processes(args: &Args, cpus: [usize; 2], rt: &Arc<Bundle>) -> Result<Distribution> {
    let engine = engine(&cpus[..1])?;
    let rt = Workload::load(&engine.handle(), "rt", rt, Class::RealTime, args.seed)?;
    let hog = Hog::start(&args.hog, cpus[1], args.seed)?;
    let found = measure(args, &rt);
    drop(hog);
    engine.shutdown();
    found
}

fn keep_busy(handle: &EngineHandle, bundle: &Arc<Bundle>, seed: u64, lane: LaneId) -> Result<ClosedLoop> {
    let hog = Workload::load_into(handle, "hog", bundle, Class::BestEffort, seed, lane)?;
    hog.ask()?;
    // Two outstanding requests, so that the load never pauses.
    Ok(hog.closed_loop(2))
}

fn measure(args: &Args, rt: &Workload) -> Result<Distribution> {
    for _ in 0..10 {
        rt.ask()?;
    }
    let arrivals = arrivals(args.rate, Duration::from_secs_f64(args.duration), false, args.seed);
    let found = rt.open_loop(&arrivals);
    ensure!(found.dropped + found.failed == 0, "{} requests were refused and {} failed", found.dropped, found.failed);
    Ok(Distribution::of(&found.latencies))
}

/// A process that keeps a model busy; dropping it ends the process.
struct Hog(Child);

impl Hog {
    fn start(model: &Path, cpu: usize, seed: u64) -> Result<Hog> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "hog"]).arg(model).args([cpu.to_string(), seed.to_string()]);
        let child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the load process")?;
        let mut hog = Hog(child);
        let mut line = String::new();
        BufReader::new(hog.0.stdout.take().expect("standard input and output are piped")).read_line(&mut line)?;
        ensure!(line.trim_end() == READY, "the load process ended; see its standard error for the reason");
        Ok(hog)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process with the load.
pub(crate) fn hog(args: &HogArgs) -> Result<()> {
    // The threads of its engine stay on this CPU as well.
    cpus::keep_to(&[args.cpu]);
    let bundle = artifact::open(&args.model, DeviceName::Host)?;
    let engine = engine(&[args.cpu])?;
    let busy = keep_busy(&engine.handle(), &bundle, args.seed, LaneId::DEFAULT)?;
    writeln!(std::io::stdout(), "{READY}")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    busy.stop();
    engine.shutdown();
    Ok(())
}

fn median(rounds: &[Distribution], of: impl Fn(&Distribution) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    crate::samples::quantile(&values, 0.5)
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let mut table =
        Table::new([("ms", Left), ("count", Right), ("p50", Right), ("p90", Right), ("p99", Right), ("max", Right)]);
    for (lanes, processes) in report.lanes.iter().zip(&report.processes) {
        for (name, distribution) in
            [("beside a hog in another lane", lanes), ("beside a hog in another process", processes)]
        {
            let [count, p50, p90, p99, max] = distribution.cells();
            table.row([name.into(), count, p50, p90, p99, max]);
        }
    }
    let [own, other] = report.cpus;
    let (p50, p99) = (report.p50_ratio, report.p99_ratio);
    format!(
        "{table}\nCPU {own} beside CPU {other}; lanes over processes, medians of the rounds: p50 {p50:.3}, p99 \
        {p99:.3}\n"
    )
}
