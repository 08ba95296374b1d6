//! `atoll bench shares`

mod sweep;
mod work;

use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::failure::user_error;
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Context, Result, ensure};
use atoll_engine::{EngineHandle, LaneId, ShareClient, ShareRequest, ShareSpec, ShareStatistics, Tenant};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sweep::Sweep;

pub(super) use sweep::rate;
pub(super) use work::{Work, open, spinning};

const EXAMPLES: &str = "\
Examples:
  atoll bench shares --split 10:90 --duration 10
  atoll bench shares --split 20:30:50 --model resnet18.kg --json
  atoll bench shares --split 10:90 --flood 400 --json
  atoll bench shares --split 10:90 --block-us 1000 --duration 60
  atoll bench shares --split 10:90 --graph
  atoll bench shares --quotas 10,20,30,40,50,60,70,80,90,100

Each part of the split is an instance with this request and limit, and requests outstanding all the time. With \
--quotas, one instance has each of these quotas in turn. Its throughput is compared with the same part of its \
throughput at 100 %.";

/// Longest time before a measurement: the first requests find cold caches.
const WARM_UP_MAX: Duration = Duration::from_secs(1);

/// Requests in flight of an instance that does not flood.
pub(super) const OUTSTANDING: usize = 2;

/// Instances of one function that share the device by quotas of time
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The parts, in percent of the time
    #[arg(long, value_name = "PERCENT:PERCENT…", default_value = "10:90", value_parser = parse_split)]
    split: Split,

    /// Measure the throughput of one instance with each of these quotas, in percent, instead of a
    /// split; 100 is always measured
    #[arg(
        long,
        value_name = "PERCENT,PERCENT…",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=100),
        conflicts_with_all = ["split", "flood"]
    )]
    quotas: Vec<u32>,

    /// Model (.kg, .onnx, or the name of a built model)
    #[arg(long, value_name = "MODEL", default_value = "squeezenet")]
    model: String,

    /// Run kernels whose blocks take this long, in microseconds, instead of a model
    #[arg(
        long,
        value_name = "US",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with = "model"
    )]
    block_us: Option<u32>,

    /// Each request is a graph of two functions: the second is called when the first has answered
    #[arg(long)]
    graph: bool,

    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,

    /// Requests of the first instance in flight; the others have two
    #[arg(long, value_name = "COUNT", default_value_t = OUTSTANDING)]
    flood: usize,

    /// Compute units of the device
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    compute_units: u32,

    /// Seed of inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Split(Vec<f64>);

fn parse_split(text: &str) -> Result<Split, String> {
    let part = |part: &str| match part.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("`{part}` is not a percentage above 0 and up to 100")),
    };
    let parts = text.split(':').map(part).collect::<Result<Vec<f64>, String>>()?;
    let sum: f64 = parts.iter().sum();
    if sum > 1.0 + 1e-9 {
        return Err(format!("the parts come to {:.1} %, and the device has 100 %", sum * 100.0));
    }
    Ok(Split(parts))
}

/// What the instances received.
#[derive(Debug, Serialize)]
struct Report {
    instances: Vec<Instance>,
}

#[derive(Debug, Serialize)]
struct Instance {
    name: String,
    /// The quota request.
    promised: f64,
    /// The part of the measured time in which its launches kept the device busy.
    received: f64,
    /// The largest difference between the received and the promised part over any second.
    error_max: f64,
    /// Device time beyond the limit of a window: the 99th percentile over all windows.
    p99_overshoot_us: f64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    // The error of a split is that of any second.
    let least = if args.quotas.is_empty() { 2.0 } else { 0.1 };
    if !(args.duration >= least && args.duration <= 3600.0 && (1..=1000).contains(&args.flood)) {
        return Err(user_error(format!(
            "--duration must be from {least} to 3600 seconds, --flood from 1 to 1000 requests"
        )));
    }
    measure(args)
}

/// Measures the split, or the sweep of quotas.
fn measure(args: &Args) -> Result<Findings> {
    let engine = bench_engine(DeviceName::Host, args.compute_units, atoll_core::POLICY_DEFAULT, 4)?;
    let handle = engine.handle();
    let findings = findings(args, &handle);
    engine.shutdown();
    findings
}

fn findings(args: &Args, handle: &EngineHandle) -> Result<Findings> {
    let queue = args.flood + OUTSTANDING * args.split.0.len();
    let work = Work::load(args, handle, queue)?;
    if args.quotas.is_empty() {
        let report = Report { instances: split(args, handle, &work)? };
        return Findings::new(&report, text(&report));
    }
    let sweep = Sweep::measure(args, handle, &work)?;
    Findings::new(&sweep, sweep.text())
}

/// An instance of the local tenant.
pub(super) fn client(name: &str) -> ShareClient {
    ShareClient { tenant: Tenant::default(), instance: Some(name.into()) }
}

/// Gives an instance a quota of the whole device, as request and limit. Its measurement begins
/// anew.
fn set_quota(handle: &EngineHandle, name: &str, quota: f64) -> Result<()> {
    let share = ShareRequest { sm_partition: 100.0, quota_request: quota, quota_limit: quota, group: 0 };
    let share = ShareSpec::new(&share).map_err(|error| user_error(error.to_string()))?;
    Ok(handle.set_share(client(name), LaneId::DEFAULT, share)?)
}

/// Time before a measurement.
fn warm_up(args: &Args) -> Duration {
    WARM_UP_MAX.min(Duration::from_secs_f64(args.duration / 2.0))
}

fn split(args: &Args, handle: &EngineHandle, work: &Work) -> Result<Vec<Instance>> {
    let names: Vec<String> = (1..=args.split.0.len()).map(|number| format!("part-{number}")).collect();
    let set = || names.iter().zip(&args.split.0).try_for_each(|(name, part)| set_quota(handle, name, *part));
    set()?;
    let stop = AtomicBool::new(false);
    let observe = || {
        std::thread::sleep(warm_up(args));
        set()?;
        let (before, began) = (handle.statistics().shares, Instant::now());
        std::thread::sleep(Duration::from_secs_f64(args.duration));
        let (after, seconds) = (handle.statistics().shares, began.elapsed().as_secs_f64());
        names.iter().map(|name| instance(name, &before, &after, seconds)).collect::<Result<Vec<Instance>>>()
    };
    std::thread::scope(|scope| {
        let start = |(at, name): (usize, &String)| {
            let (stop, work) = (&stop, work.of(name));
            scope.spawn(move || work.keep_busy(handle, if at == 0 { args.flood } else { OUTSTANDING }, stop))
        };
        let loops: Vec<_> = names.iter().enumerate().map(start).collect();
        let observed = observe();
        stop.store(true, Ordering::Relaxed);
        for outcome in loops {
            outcome.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        observed
    })
}

fn instance(name: &str, before: &[ShareStatistics], after: &[ShareStatistics], seconds: f64) -> Result<Instance> {
    let find = |shares: &[ShareStatistics]| {
        let share = shares.iter().find(|share| share.client.instance.as_deref() == Some(name)).cloned();
        share.with_context(|| format!("the engine has no share of {name}"))
    };
    let (before, after) = (find(before)?, find(after)?);
    ensure!(after.windows > before.windows, "{name} was not measured");
    Ok(Instance {
        name: name.into(),
        promised: f64::from(after.share.request().millionths()) / 1e6,
        received: (after.received_ns - before.received_ns) as f64 / 1e9 / seconds,
        error_max: after.error_max,
        p99_overshoot_us: after.overshoot.quantile_ns(0.99) as f64 / 1e3,
    })
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let columns = [
        ("instance", Left),
        ("promised", Right),
        ("received", Right),
        ("largest error", Right),
        ("overshoot p99", Right),
    ];
    let mut table = Table::new(columns);
    for Instance { name, promised, received, error_max, p99_overshoot_us } in &report.instances {
        let percent = |fraction: f64| format!("{:.2} %", fraction * 100.0);
        let cells = [percent(*promised), percent(*received), percent(*error_max)];
        let [promised, received, error_max] = cells;
        table.row([name.clone(), promised, received, error_max, format!("{p99_overshoot_us:.0} us")]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_percentages_of_one_device() {
        assert_eq!(parse_split("10:90"), Ok(Split(vec![0.1, 0.9])));
        for (text, part) in [
            ("10", ""),
            ("0:10", "`0`"),
            ("nan:1", "`nan`"),
            ("130", "`130`"),
            ("60:50", "come to 110.0 %"),
            ("", "``"),
        ] {
            match parse_split(text) {
                Ok(_) => assert_eq!(part, "", "{text}"),
                Err(error) => assert!(!part.is_empty() && error.contains(part), "{error}"),
            }
        }
    }

    /// Blocks of 100 µs, for a moment.
    fn args(more: &[&str]) -> Args {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let short = ["bench", "--block-us", "100", "--duration", "0.3"];
        let cli: Cli = clap::Parser::try_parse_from([&short[..], more].concat()).unwrap();
        cli.args
    }

    #[test]
    fn graphs_of_blocks_run_under_shares() {
        let found = measure(&args(&["--graph", "--split", "30:70"])).unwrap();
        let json: serde_json::Value = serde_json::from_str(&found.json).unwrap();
        let instances = json["instances"].as_array().unwrap();
        assert_eq!(instances.len(), 2);
        assert!(instances.iter().all(|instance| instance["received"].as_f64().unwrap() > 0.0), "{instances:?}");
        assert!(run(&args(&[])).err().unwrap().to_string().contains("--duration must be from 2"));
    }

    #[test]
    fn a_sweep_ends_with_the_whole_device() {
        let found = measure(&args(&["--quotas", "50"])).unwrap();
        let json: serde_json::Value = serde_json::from_str(&found.json).unwrap();
        let quotas: Vec<f64> =
            json["quotas"].as_array().unwrap().iter().map(|row| row["quota"].as_f64().unwrap()).collect();
        assert_eq!(quotas, [0.5, 1.0]);
        assert!(found.text.contains("largest deviation"), "{}", found.text);
    }
}
