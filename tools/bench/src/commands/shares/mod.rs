//! `atoll bench shares`

use super::model_file;
use crate::artifact;
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::failure::user_error;
use crate::invoker::request;
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, ensure};
use atoll_engine::{
    Class, EngineHandle, FunctionKey, FunctionOptions, InvocationRequest, LaneId, ShareClient, ShareRequest, ShareSpec,
    ShareStatistics, Tenant,
};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_server::tensor_metadata;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench shares --split 10:90 --duration 10
  atoll bench shares --split 20:30:50 --model resnet18.kg --json
  atoll bench shares --split 10:90 --flood 400 --json

Each part of the split is an instance with this request and limit, and requests outstanding all the time.";

/// Part of the duration before the measurement: the first requests find cold caches.
const WARM_UP: Duration = Duration::from_secs(1);

/// Instances of one function that share the device by quotas of time
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The parts, in percent of the time
    #[arg(long, value_name = "PERCENT:PERCENT…", default_value = "10:90", value_parser = parse_split)]
    split: Split,

    /// Model (.kg, .onnx, or the name of a built model)
    #[arg(long, value_name = "MODEL", default_value = "squeezenet")]
    model: String,

    /// Duration of the measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,

    /// Requests of the first instance in flight; the others have two
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
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
    if !(args.duration >= 2.0 && args.duration <= 3600.0 && (1..=1000).contains(&args.flood)) {
        return Err(user_error("--duration must be from 2 to 3600 seconds, --flood from 1 to 1000 requests"));
    }
    let bundle = open(&args.model)?;
    let engine = bench_engine(DeviceName::Host, args.compute_units, atoll_core::POLICY_DEFAULT, 4)?;
    let handle = engine.handle();
    let found = measure(args, &handle, &bundle);
    engine.shutdown();
    let report = Report { instances: found? };
    Findings::new(&report, text(&report))
}

fn open(model: &str) -> Result<Arc<Bundle>> {
    if model.ends_with(".kg") {
        return artifact::open(model.as_ref(), DeviceName::Host);
    }
    let folder = tempfile::tempdir()?;
    artifact::open(&model_file(model, folder.path(), false)?, DeviceName::Host)
}

fn client(name: &str) -> ShareClient {
    ShareClient { tenant: Tenant::default(), instance: Some(name.into()) }
}

fn measure(args: &Args, handle: &EngineHandle, bundle: &Arc<Bundle>) -> Result<Vec<Instance>> {
    let options = FunctionOptions {
        key: FunctionKey::local("model"),
        class: Class::BestEffort,
        queue_capacity: Some(args.flood + 2 * args.split.0.len()),
        lane: LaneId::DEFAULT,
        batching: None,
    };
    handle.load(bundle.clone(), options).context("cannot load the model")?;
    let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
    let inputs = InputSpecs::default().tensors(&metadata, &mut Random::new(args.seed))?;
    let names: Vec<String> = (1..=args.split.0.len()).map(|number| format!("part-{number}")).collect();
    let set = |name: &String, part: &f64| {
        let share = ShareRequest { sm_partition: 100.0, quota_request: *part, quota_limit: *part, group: 0 };
        let share = ShareSpec::new(&share).map_err(|error| user_error(error.to_string()))?;
        Ok::<_, anyhow::Error>(handle.set_share(client(name), LaneId::DEFAULT, share)?)
    };
    names.iter().zip(&args.split.0).try_for_each(|(name, part)| set(name, part))?;
    let (stop, plain) = (AtomicBool::new(false), request("model", &inputs, None));
    let observe = || {
        std::thread::sleep(WARM_UP);
        // Setting a share again resets its measurement.
        names.iter().zip(&args.split.0).try_for_each(|(name, part)| set(name, part))?;
        let (before, began) = (handle.statistics().shares, Instant::now());
        std::thread::sleep(Duration::from_secs_f64(args.duration));
        let (after, seconds) = (handle.statistics().shares, began.elapsed().as_secs_f64());
        names.iter().map(|name| instance(name, &before, &after, seconds)).collect::<Result<Vec<Instance>>>()
    };
    std::thread::scope(|scope| {
        let start = |(at, name): (usize, &String)| {
            let (stop, request) = (&stop, InvocationRequest { instance: Some(name.clone()), ..plain.clone() });
            scope.spawn(move || keep_busy(handle, &request, if at == 0 { args.flood } else { 2 }, stop))
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

/// Keeps a number of requests in flight until it is stopped.
fn keep_busy(handle: &EngineHandle, request: &InvocationRequest, outstanding: usize, stop: &AtomicBool) -> Result<()> {
    let (answers, answered) = mpsc::channel();
    let submit = || {
        let answers = answers.clone();
        handle.submit(request.clone(), Box::new(move |result| drop(answers.send(result.map(drop)))));
    };
    (0..outstanding).for_each(|_| submit());
    let mut left = outstanding;
    while left > 0 {
        answered.recv()??;
        match stop.load(Ordering::Relaxed) {
            true => left -= 1,
            false => submit(),
        }
    }
    Ok(())
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
}
