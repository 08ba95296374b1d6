//! `atoll bench engine`

mod tape;

use crate::failure::user_error;
use crate::invoker::{invoke, load, request};
use crate::output::{Align, Table, counted};
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::{Context, Result};
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_device_host::HostConfig;
use atoll_engine::{Class, Engine, EngineConfig, EngineHandle, LaneId, ShareClient, ShareRequest, ShareSpec, Tenant};
use atoll_kgraph::Bundle;
use atoll_pipeline::{CompileOptions, Silent, Target, pack};
use serde_json::json;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tape::{Deck, Idle, Place};

/// Name of the engine's thread.
const ENGINE_THREAD: &str = "atoll-engine";
/// Time after which the engine's thread is asleep, so that its CPU time is complete.
const SETTLE: Duration = Duration::from_millis(5);

const EXAMPLES: &str = "\
Examples:
  atoll bench engine
  atoll bench engine --kernels 10000 --compute-units 1,2,4 --json
  atoll bench engine --share 1";

/// Measure what the engine adds per kernel: empty kernels through the engine, and the same launches
/// submitted to the device directly
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of kernels of the graph
    #[arg(long, default_value_t = NonZeroU32::new(1000).expect("not zero"))]
    kernels: NonZeroU32,

    /// Numbers of compute units to measure with
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    compute_units: Vec<NonZeroU32>,

    /// Number of invocations to measure
    #[arg(long, default_value_t = NonZeroU32::new(50).expect("not zero"))]
    count: NonZeroU32,

    /// Run the kernels under a share with this part of the time, above 0 and up to 1, so that each
    /// of them needs a token
    #[arg(long, value_name = "QUOTA")]
    share: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let bundle = empty_kernels(args.kernels.get())?;
    let mut measured = Vec::new();
    for units in &args.compute_units {
        for place in [Place::Here, Place::Executor] {
            measured.push(measure(args, &bundle, units.get(), place)?);
        }
    }
    Findings::new(&measured.iter().map(|m| m.json(args)).collect::<Vec<_>>(), text(&measured))
}

fn text(measured: &[Measured]) -> String {
    let mut table = Table::new([
        ("µs per kernel", Align::Left),
        ("compute units", Align::Left),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    for measured in measured {
        for (name, distribution) in measured.rows() {
            let us = |ms: f64| format!("{:.2}", ms * 1000.0);
            let Distribution { p50_ms, p90_ms, p99_ms, max_ms, .. } = distribution;
            let device = format!("{} {}", measured.units, measured.place());
            table.row([name.into(), device, us(*p50_ms), us(*p90_ms), us(*p99_ms), us(*max_ms)]);
        }
    }
    let added = measured.iter().map(|measured| {
        format!(
            "{} {}: the engine adds {:.2} µs per kernel, and its thread uses {:.2} µs, including submission \
            (medians)\n",
            counted(measured.units, "compute unit"),
            measured.place(),
            measured.added_us(),
            measured.engine_thread.p50_ms * 1000.0
        )
    });
    format!("{table}\n{}", added.collect::<String>())
}

/// Times per kernel, one sample per invocation.
struct Measured {
    units: u32,
    place: Place,
    /// From the first block to the end of the last.
    engine: Distribution,
    /// CPU time of the engine's thread. Includes submission and completion, which are needed
    /// without an engine, too.
    engine_thread: Distribution,
    /// The same launches without an engine, from a thread that sleeps while it waits, and from one
    /// that spins. Which is faster depends on the number of cores: waking costs microseconds,
    /// spinning takes a core.
    sleeping: Distribution,
    spinning: Distribution,
}

impl Measured {
    fn place(&self) -> &'static str {
        match self.place {
            Place::Here => "here",
            Place::Executor => "in an executor",
        }
    }

    fn rows(&self) -> [(&'static str, &Distribution); 4] {
        [
            ("through the engine", &self.engine),
            ("the device alone, submitter sleeps", &self.sleeping),
            ("the device alone, submitter spins", &self.spinning),
            ("the engine's thread", &self.engine_thread),
        ]
    }

    /// What the engine adds to a kernel: its median, minus the faster median without it.
    fn added_us(&self) -> f64 {
        (self.engine.p50_ms - self.sleeping.p50_ms.min(self.spinning.p50_ms)) * 1000.0
    }

    fn json(&self, args: &Args) -> serde_json::Value {
        let key = |name: &str| name.replace([' ', '\''], "_").replace(',', "");
        let rows: serde_json::Map<_, _> = self.rows().into_iter().map(|(name, d)| (key(name), json!(d))).collect();
        json!({
            "compute_units": self.units,
            "executor": self.place == Place::Executor,
            "kernels": args.kernels,
            "share": args.share,
            "engine_adds_us": self.added_us(),
            "engine_thread_us": self.engine_thread.p50_ms * 1000.0,
            "per_kernel": rows,
        })
    }
}

fn measure(args: &Args, bundle: &Arc<Bundle>, units: u32, place: Place) -> Result<Measured> {
    let kernels = args.kernels.get();
    let config = HostConfig { compute_units: units, memory_bytes: 256 << 20, ..HostConfig::default() };
    let deck = Deck::start(config, place)?;
    let engine = Engine::start(deck.device()?, EngineConfig::default())?;
    let handle = engine.handle();
    load(&handle, bundle, "empty", Class::BestEffort)?;
    set_share(args, &handle)?;
    let [mut wall, mut thread, mut sleeping, mut spinning] = [const { Vec::new() }; 4];
    // The first invocation allocates and binds; the second is recorded.
    for index in 0..args.count.get() + 2 {
        deck.record(index == 1);
        let before = engine_thread_time()?;
        let result = invoke(&handle, request("empty", &[], None))?;
        std::thread::sleep(SETTLE);
        let spent = engine_thread_time()?.saturating_sub(before);
        if index >= 2 {
            wall.push(Duration::from_nanos(result.timing.compute_ns) / kernels);
            thread.push(spent / kernels);
        }
    }
    let is_metered = handle.statistics().shares.iter().all(|share| share.received_ns > 0);
    engine.shutdown();
    anyhow::ensure!(is_metered, "the share was not charged");
    anyhow::ensure!(deck.launches() == kernels as usize, "recorded {} launches of {kernels}", deck.launches());
    for index in 0..args.count.get() + 2 {
        for (idle, times) in [(Idle::Sleep, &mut sleeping), (Idle::Spin, &mut spinning)] {
            let took = deck.replay(DEVICE_QUEUE_CAPACITY_DEFAULT as usize, idle)?;
            if index >= 2 {
                times.push(took / kernels);
            }
        }
    }
    let [engine, engine_thread, sleeping, spinning] =
        [wall, thread, sleeping, spinning].map(|times| Distribution::of(&times));
    Ok(Measured { units, place, engine, engine_thread, sleeping, spinning })
}

/// Gives the local tenant its share, if there is one.
fn set_share(args: &Args, handle: &EngineHandle) -> Result<()> {
    let Some(quota) = args.share else { return Ok(()) };
    let share = ShareRequest { sm_partition: 100.0, quota_request: quota, quota_limit: quota, group: 0 };
    let share = ShareSpec::new(&share).map_err(|error| user_error(format!("--share {quota}: {error}")))?;
    Ok(handle.set_share(ShareClient { tenant: Tenant::default(), instance: None }, LaneId::DEFAULT, share)?)
}

/// A graph of `count` empty kernels, one after the other.
fn empty_kernels(count: u32) -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("empty.ptx"), include_str!("empty.ptx"))?;
    let manifest = folder.path().join("empty.toml");
    let text = format!(
        "name = \"empty\"\nptx = [\"empty.ptx\"]\n[buffers]\ny = {{ kind = \"output\", dtype = \"u32\", shape = [1] \
        }}\n[[step]]\nrepeat = {count}\n\
         steps = [{{ kernel = \"empty\", grid = [1], block = [32], args = [\"y\"], writes = [\"y\"] }}]\n"
    );
    std::fs::write(&manifest, text)?;
    let bundle = folder.path().join("empty.kg");
    let options = CompileOptions { targets: vec![Target::this_host()], ..CompileOptions::default() };
    pack(&manifest, &bundle, &options, &Silent)?;
    Ok(Bundle::open(&bundle)?)
}

/// CPU time of the engine's thread, as reported by the system; exact while it sleeps.
fn engine_thread_time() -> Result<Duration> {
    for entry in std::fs::read_dir("/proc/self/task")? {
        let thread: PathBuf = entry?.path();
        // The thread may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        if name.trim_end() == ENGINE_THREAD {
            let text = std::fs::read_to_string(thread.join("schedstat"))
                .context("the system does not report the CPU time of threads")?;
            let ns = text
                .split(' ')
                .next()
                .and_then(|ns| ns.parse().ok())
                .context("/proc/…/schedstat has an unknown format")?;
            return Ok(Duration::from_nanos(ns));
        }
    }
    anyhow::bail!("cannot find the engine's thread")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_run_under_a_share() {
        let one = NonZeroU32::MIN;
        let args = |share| Args { kernels: one, compute_units: Vec::new(), count: one, share };
        let bundle = empty_kernels(1).unwrap();
        let measured = measure(&args(Some(1.0)), &bundle, 1, Place::Here).unwrap();
        assert_eq!(measured.json(&args(Some(1.0)))["share"], 1.0);
        let error = measure(&args(Some(1.5)), &bundle, 1, Place::Here).err().unwrap().to_string();
        assert!(error.contains("--share 1.5"), "{error}");
    }
}
