//! `atoll bench latency`

#[cfg(feature = "compiler")]
mod daemon;

use super::load::{OpenLoop, WorkingSet, Workload, arrivals};
use crate::artifact;
use crate::engine::EngineArgs;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::Result;
use atoll_engine::{Class, EngineHandle, EngineStatistics, Histogram};
use atoll_kgraph::Bundle;
use clap::ValueEnum;
use serde::Serialize;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll bench latency --rt squeezenet.kg --be resnet50.kg
  atoll bench latency --rt magika.onnx --be resnet50.onnx --rate 50 \\
      --arrivals poisson --duration 60 --json
  atoll bench latency --rt squeezenet.kg --be resnet50.kg --policy sequential
  atoll bench latency --rt squeezenet.kg --be resnet50.kg --daemon

Real-time requests arrive independently of answers (open loop); best-effort requests follow their answers \
(closed loop). The phases have equal length: real-time alone, best-effort alone, both; all real-time phases \
have the same arrivals. In a further phase real-time requests run alone, and memory of the best-effort model's \
size is swept between them, to separate the effect of cold caches. With --daemon, the same arrivals follow \
once more over HTTP and over rings, each alone and beside best-effort requests.";

/// Measure real-time requests alone and beside best-effort load, in this process
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model of the real-time requests (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    rt: PathBuf,

    /// Model of the best-effort load (.kg or .onnx)
    #[arg(long, value_name = "MODEL")]
    be: PathBuf,

    /// Duration of each phase, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,

    /// Real-time requests per second
    #[arg(long, value_name = "PER_SECOND", default_value_t = 10.0)]
    rate: f64,

    /// Arrivals of real-time requests
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,

    /// Outstanding best-effort requests
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroUsize::MIN)]
    be_concurrency: NonZeroUsize,

    /// Seed of arrivals and inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Also send the real-time requests to a daemon in this process, over HTTP and over rings
    #[cfg(feature = "compiler")]
    #[arg(long)]
    daemon: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arrivals {
    /// A Poisson process
    Poisson,
    /// At equal intervals
    Periodic,
}

#[derive(Debug, Serialize)]
struct Report {
    rt_alone: RealTime,
    /// Alone, with the caches swept by memory of the best-effort model's size before each request.
    rt_swept: RealTime,
    rt_beside: RealTime,
    be_alone: BestEffort,
    be_beside: BestEffort,
    /// Best-effort throughput beside real-time requests, as a share of that alone.
    be_throughput_kept: f64,
    preemption: Preemption,
}

#[derive(Debug, Serialize)]
struct RealTime {
    latency: Distribution,
    dropped: usize,
    failed: usize,
}

#[derive(Debug, Serialize)]
struct BestEffort {
    latency: Distribution,
    per_second: f64,
}

/// Counts and times of the phase with both loads.
#[derive(Debug, Serialize)]
struct Preemption {
    preemptions: u64,
    evicted_launches: u64,
    issued_launches: u64,
    /// Time from the submission of a real-time request that evicts others to its first block.
    latency: Quantiles,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    count: u64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl From<OpenLoop> for RealTime {
    fn from(found: OpenLoop) -> RealTime {
        RealTime { latency: Distribution::of(&found.latencies), dropped: found.dropped, failed: found.failed }
    }
}

impl From<(Vec<Duration>, f64)> for BestEffort {
    fn from((latencies, per_second): (Vec<Duration>, f64)) -> BestEffort {
        BestEffort { latency: Distribution::of(&latencies), per_second }
    }
}

impl Quantiles {
    fn text(&self, of: &str) -> String {
        format!(
            "from submission to the first block, {of}: p50 {:.0} µs, p90 {:.0} µs, p99 {:.0} µs, max {:.0} µs ({} \
             times)",
            self.p50_us, self.p90_us, self.p99_us, self.max_us, self.count
        )
    }
}

impl From<&Histogram> for Quantiles {
    fn from(histogram: &Histogram) -> Quantiles {
        let us = |ns: u64| ns as f64 / 1e3;
        let [p50_us, p90_us, p99_us] = [0.5, 0.9, 0.99].map(|q| us(histogram.quantile_ns(q)));
        Quantiles { count: histogram.count(), p50_us, p90_us, p99_us, max_us: us(histogram.max_ns()) }
    }
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    if !(args.rate > 0.0 && args.rate <= 1e6 && args.duration > 0.0 && args.duration <= 86_400.0) {
        return Err(user_error(
            "--rate must be above 0 and at most 1000000 per second, --duration above 0 and at most 86400 seconds",
        ));
    }
    let bundles = open(args)?;
    #[cfg(feature = "compiler")]
    if args.daemon {
        return daemon::run(args, &bundles);
    }
    let engine = args.engine.start()?;
    let report = Loads::load(args, &engine.handle(), &bundles).and_then(|mut loads| loads.measure(args));
    engine.shutdown();
    let report = report?;
    Findings::new(&report, text(&report))
}

/// The bundles of both loads.
struct Bundles {
    rt: Arc<Bundle>,
    be: Arc<Bundle>,
}

fn open(args: &Args) -> Result<Bundles> {
    let device = args.engine.device_name();
    Ok(Bundles { rt: artifact::open(&args.rt, device)?, be: artifact::open(&args.be, device)? })
}

/// Both loads of an engine.
struct Loads {
    handle: EngineHandle,
    rt: Workload,
    be: Workload,
    working_set: WorkingSet,
    arrivals: Vec<Duration>,
}

impl Loads {
    fn load(args: &Args, handle: &EngineHandle, Bundles { rt, be }: &Bundles) -> Result<Loads> {
        let duration = Duration::from_secs_f64(args.duration);
        Ok(Loads {
            working_set: WorkingSet::new(be.weights().len(), handle.device_info().compute_units as usize),
            rt: Workload::load(handle, "rt", rt, Class::RealTime, args.seed)?,
            be: Workload::load(handle, "be", be, Class::BestEffort, args.seed)?,
            arrivals: arrivals(args.rate, duration, args.arrivals == Arrivals::Poisson, args.seed),
            handle: handle.clone(),
        })
    }

    fn measure(&mut self, args: &Args) -> Result<Report> {
        let Loads { handle, rt, be, working_set, arrivals } = self;
        rt.ask()?;
        be.ask()?;
        let rt_alone = rt.open_loop(arrivals).into();
        let rt_swept = rt.open_loop_swept(arrivals, working_set).into();
        let be_alone = be.closed_loop(args.be_concurrency.get());
        std::thread::sleep(Duration::from_secs_f64(args.duration));
        let be_alone: BestEffort = be_alone.stop().into();
        let before = handle.statistics();
        let be_beside = be.closed_loop(args.be_concurrency.get());
        let rt_beside = rt.open_loop(arrivals).into();
        let be_beside: BestEffort = be_beside.stop().into();
        let after = handle.statistics();
        Ok(Report {
            rt_alone,
            rt_swept,
            rt_beside,
            be_throughput_kept: be_beside.per_second / be_alone.per_second,
            be_alone,
            be_beside,
            preemption: Preemption::between(&before, &after),
        })
    }
}

impl Preemption {
    fn between(before: &EngineStatistics, after: &EngineStatistics) -> Preemption {
        Preemption {
            preemptions: after.preemptions - before.preemptions,
            evicted_launches: after.evicted_launches - before.evicted_launches,
            issued_launches: after.issued_launches - before.issued_launches,
            latency: (&after.preemption_latency.since(&before.preemption_latency)).into(),
        }
    }
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("ms", Left),
        ("count", Right),
        ("p50", Right),
        ("p90", Right),
        ("p99", Right),
        ("max", Right),
        ("dropped", Right),
        ("failed", Right),
    ]);
    let mut row = |name: &str, latency: &Distribution, dropped: String, failed: String| {
        let [count, p50, p90, p99, max] = latency.cells();
        table.row([name.into(), count, p50, p90, p99, max, dropped, failed]);
    };
    let phases = [
        ("real-time alone", &report.rt_alone),
        ("real-time alone, caches swept", &report.rt_swept),
        ("real-time beside best-effort", &report.rt_beside),
    ];
    for (name, rt) in phases {
        row(name, &rt.latency, rt.dropped.to_string(), rt.failed.to_string());
    }
    for (name, be) in [("best-effort alone", &report.be_alone), ("best-effort beside real-time", &report.be_beside)] {
        row(name, &be.latency, String::new(), String::new());
    }
    let p = &report.preemption;
    let mut text = table.to_string();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\nbest-effort: {:.2} per second alone, {:.2} beside real-time: {:.0} % kept\n{} preemptions; {} of {} \
        launches were evicted",
        report.be_alone.per_second,
        report.be_beside.per_second,
        100.0 * report.be_throughput_kept,
        p.preemptions,
        p.evicted_launches,
        p.issued_launches
    );
    text + &p.latency.text("a real-time request that evicts") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_preempting_requests_of_the_phase_are_reported() {
        let mut statistics = EngineStatistics { preemptions: 1, ..EngineStatistics::default() };
        statistics.preemption_latency.record(9_000_000);
        let before = statistics.clone();
        statistics.preemptions += 2;
        for ns in [100_000, 200_000] {
            statistics.preemption_latency.record(ns);
            statistics.rt_start_latency.record(ns);
        }
        // A request that found an idle compute unit.
        statistics.rt_start_latency.record(5_000);
        let found = Preemption::between(&before, &statistics);
        assert_eq!((found.preemptions, found.latency.count), (2, 2));
        assert!((100.0..110.0).contains(&found.latency.p50_us), "{}", found.latency.p50_us);
        assert!((200.0..215.0).contains(&found.latency.max_us), "{}", found.latency.max_us);
    }
}
