//! `atoll bench recovery`: how long a device is away after it loses its executor process, while
//! clients call functions on all devices.

use crate::compiler::compile_for;
use crate::engine::FleetArgs;
use crate::failure::{OrUserError, user_error};
use crate::output::{Align, Table};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_engine::{
    Class, DeviceId, ExecutorStatistics, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, LaneId,
    MemoryQuotas, SuspensionConfig,
};
use atoll_fleet::{FleetHandle, Inference};
use atoll_kgraph::{Bundle, DType, ModelOptions};
use atoll_models::{BuildOptions, build_onnx};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench recovery --device host:0@0 --device host:1@1
  atoll bench recovery --device cuda:0 --device cuda:1 --losses 100 --hang-every 0 --json";

/// The function: its output is its input, if that is positive.
const MODEL: &str = "null";
/// FP32 elements of its input.
const ELEMENTS: u32 = 16;
/// Losses of one device, on average, before the devices are started anew. After five losses within a
/// minute a device is given up for a while.
const LOSSES_MAX: u32 = 4;
/// Clients of each device, unless --clients is given: more than the requests in flight on it.
const CLIENTS: u32 = 3;
/// Longest wait for a loss to be noticed, or for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the devices are asked for losses.
const POLL: Duration = Duration::from_millis(1);

/// Measure the time until a device answers again after it lost its executor process
///
/// Clients send requests without pauses. Meanwhile the process of one device after the other, in
/// random order, is killed, or stopped so that it hangs until that is noticed. The command fails if
/// a request has no answer or a wrong one. Its requests go to the other devices meanwhile, so at
/// least two are needed.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of losses
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    losses: u32,

    /// Stop the process instead of killing it at every so many losses; 0 for never
    #[arg(long, value_name = "LOSSES", default_value_t = 3)]
    hang_every: u32,

    /// Clients [default: three for each device]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Option<u32>,

    /// Seed of the order of devices
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    fleet: FleetArgs,
}

/// Results.
#[derive(Default)]
struct Measured {
    killed: Vec<Duration>,
    stopped: Vec<Duration>,
    calls: Vec<Duration>,
    devices: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let devices = args.fleet.device_names().len() as u32;
    if devices < 2 {
        return Err(user_error("requests need another device while one is away; give --device at least twice"));
    }
    let bundle = bundle(args)?;
    let (mut random, mut measured) = (Random::new(args.seed), Measured::default());
    for first in (0..args.losses).step_by((LOSSES_MAX * devices) as usize) {
        let losses = first..args.losses.min(first + LOSSES_MAX * devices);
        measure(args, &bundle, losses, &mut random, &mut measured)?;
    }
    Findings::new(&as_json(args, &measured), text(&measured))
}

/// Compiles the function.
fn bundle(args: &Args) -> Result<Arc<Bundle>> {
    let folder = tempfile::tempdir()?;
    let (model, bundle) = (folder.path().join("model.onnx"), folder.path().join("model.kg"));
    let options = BuildOptions { image: Some(ELEMENTS), ..BuildOptions::default() };
    std::fs::write(&model, build_onnx(MODEL, &options).map_err(|error| anyhow!("{error}"))?)?;
    let device = *args.fleet.device_names().first().context("there is a device")?;
    compile_for(device, &model, &ModelOptions::default(), &bundle)?;
    Ok(Bundle::open(&bundle)?)
}

/// Measures losses of newly started devices.
fn measure(
    args: &Args,
    bundle: &Arc<Bundle>,
    losses: Range<u32>,
    random: &mut Random,
    measured: &mut Measured,
) -> Result<()> {
    let fleet = args.fleet.start(MemoryQuotas::default(), SuspensionConfig::default(), None)?;
    let handle = fleet.handle();
    measured.devices = handle.devices().to_vec();
    let options = FunctionOptions {
        key: FunctionKey::local(MODEL),
        class: Class::BestEffort,
        queue_capacity: None,
        lane: LaneId::DEFAULT,
        batching: None,
    };
    let done = handle.load(Arc::clone(bundle), options, None).context("cannot load the function").and_then(|_| {
        let load = Load::new(&handle);
        let clients = args.clients.unwrap_or(CLIENTS * load.answered.len() as u32);
        load.around(clients, &mut measured.calls, || {
            losses.clone().try_for_each(|number| {
                let hangs = args.hang_every > 0 && number % args.hang_every == args.hang_every - 1;
                let (signal, times) = match hangs {
                    true => (Signal::STOP, &mut measured.stopped),
                    false => (Signal::KILL, &mut measured.killed),
                };
                times.push(load.lose(load.next(random)?, signal).with_context(|| format!("loss {number}"))?);
                Ok(())
            })
        })
    });
    fleet.shutdown();
    done
}

/// Clients of a fleet, and what its devices answered.
struct Load<'a> {
    fleet: &'a FleetHandle,
    over: AtomicBool,
    next: AtomicU32,
    /// Answers of each device.
    answered: Vec<AtomicU64>,
}

impl Load<'_> {
    fn new(fleet: &FleetHandle) -> Load<'_> {
        let answered = fleet.devices().iter().map(|_| AtomicU64::new(0)).collect();
        Load { fleet, over: AtomicBool::new(false), next: AtomicU32::new(1), answered }
    }

    /// Does `work` while clients send requests, and appends how long their calls took.
    fn around(&self, clients: u32, calls: &mut Vec<Duration>, work: impl FnOnce() -> Result<()>) -> Result<()> {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(|| self.client())).collect();
            let each = |at: usize| wait("a device answers", || Ok(self.answered[at].load(Relaxed) > 0));
            let done = (0..self.answered.len()).try_for_each(each).and_then(|()| work());
            self.over.store(true, Relaxed);
            for client in clients {
                calls.extend(client.join().map_err(|_| anyhow!("a client panicked"))??);
            }
            done
        })
    }

    /// Calls the function until the load is over. Returns how long each call took.
    fn client(&self) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        while !self.over.load(Relaxed) {
            let begin = Instant::now();
            let device = self.call(self.next.fetch_add(1, Relaxed))?;
            took.push(begin.elapsed());
            self.answered[usize::from(device.0)].fetch_add(1, Relaxed);
        }
        Ok(took)
    }

    /// A call with a value that few others have. Returns the device that answered.
    fn call(&self, number: u32) -> Result<DeviceId> {
        // Exact in FP32, and above 0.
        let value = (number % (1 << 24) + 1) as f32;
        let bytes: Vec<u8> = (0..ELEMENTS).flat_map(|_| value.to_le_bytes()).collect();
        let input = InputTensor { dtype: Some(DType::F32), shape: vec![1, ELEMENTS.into()], bytes };
        let expected = input.bytes.clone();
        let request = InvocationRequest {
            function: FunctionKey::local(MODEL),
            inputs: vec![input],
            class: None,
            priority: 0,
            instance: None,
            deadline: None,
        };
        let (answer, answered) = mpsc::sync_channel(1);
        self.fleet.submit(request.into(), Box::new(move |result| drop(answer.send(result))));
        let result = answered.recv_timeout(PATIENCE).map_err(|_| anyhow!("call {number} has no answer"))?;
        let result = result.with_context(|| format!("call {number} failed"))?;
        let is_right = result.outputs.iter().map(|output| &output.bytes).eq([&expected]);
        ensure!(is_right, "call {number} has a wrong answer");
        Ok(result.device)
    }

    /// The executor processes of a device.
    fn executors(&self, device: usize) -> Result<ExecutorStatistics> {
        let mut all = self.fleet.statistics();
        ensure!(device < all.len(), "there is no device {device}");
        Ok(all.swap_remove(device).device.executors)
    }

    /// The device that loses its process next.
    fn next(&self, random: &mut Random) -> Result<usize> {
        let devices = self.answered.len();
        let lost = (0..devices).map(|device| Ok(losses(&self.executors(device)?))).collect::<Result<Vec<u64>>>()?;
        let possible: Vec<usize> = (0..devices).filter(|device| lost[*device] < LOSSES_MAX.into()).collect();
        let pick = random.next_u64() as usize % possible.len().max(1);
        possible.get(pick).copied().context("all devices have lost enough processes")
    }

    /// Kills or stops the process of a device. Returns the time until the device answers again.
    fn lose(&self, device: usize, signal: Signal) -> Result<Duration> {
        let before = self.executors(device)?;
        let pid = before.processes.iter().find_map(|process| Pid::from_raw(process.pid? as i32));
        let name = &self.fleet.devices()[device];
        let pid = pid.with_context(|| format!("{name} has no process of its own; use --isolation process"));
        let pid = pid.or_user_error()?;
        let begin = Instant::now();
        kill_process(pid, signal).with_context(|| format!("cannot signal the process of {name}"))?;
        wait("the loss is noticed", || Ok(losses(&self.executors(device)?) > losses(&before)))?;
        let answered = self.answered[device].load(Relaxed);
        wait("the device answers again", || Ok(self.answered[device].load(Relaxed) > answered))?;
        Ok(begin.elapsed())
    }
}

/// Processes that were lost.
fn losses(executors: &ExecutorStatistics) -> u64 {
    executors.died + executors.hung
}

fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !is_so()? {
        ensure!(begin.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn as_json(args: &Args, measured: &Measured) -> Value {
    json!({
        "devices": measured.devices,
        "seed": args.seed,
        "killed": Distribution::of(&measured.killed),
        "stopped": Distribution::of(&measured.stopped),
        "calls": Distribution::of(&measured.calls),
    })
}

fn text(measured: &Measured) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("time", Left),
        ("count", Right),
        ("p50 (ms)", Right),
        ("p90 (ms)", Right),
        ("p99 (ms)", Right),
        ("longest (ms)", Right),
    ]);
    for (name, times) in [
        ("until a device answers again: process killed", &measured.killed),
        ("the same: process stopped", &measured.stopped),
        ("of a call", &measured.calls),
    ] {
        let [count, p50, p90, p99, max] = Distribution::of(times).cells();
        table.row([name.to_owned(), count, p50, p90, p99, max]);
    }
    format!("{table}\nEvery call has one answer, and it is right\n")
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

    #[test]
    fn one_device_is_refused_before_anything_is_started() {
        let cli = Cli::try_parse_from(["recovery", "--device", "host"]).unwrap();
        let error = run(&cli.args).map(drop).unwrap_err().to_string();
        assert!(error.contains("give --device at least twice"), "{error}");
    }

    #[test]
    fn the_report_has_each_kind_of_loss() {
        let ms = |ms: u64| Duration::from_millis(ms);
        let devices = vec!["host:0".into(), "host:1".into()];
        let measured = Measured { killed: vec![ms(3), ms(5)], stopped: vec![ms(900)], calls: vec![ms(1); 40], devices };
        let cli = Cli::try_parse_from(["recovery", "--device", "host:0@0", "--device", "host:1@1"]).unwrap();
        let json = as_json(&cli.args, &measured);
        assert_eq!((&json["killed"]["count"], &json["killed"]["p50_ms"]), (&json!(2), &json!(3.0)));
        assert_eq!((&json["stopped"]["max_ms"], &json["calls"]["count"]), (&json!(900.0), &json!(40)));
        assert!(text(&measured).contains("process stopped"), "{}", text(&measured));
    }
}
