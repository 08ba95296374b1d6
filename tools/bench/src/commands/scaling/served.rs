//! A daemon of this process whose model is scaled, under a load.

use super::zero::{self, FromZero};
use super::{Args, Row, end_ns, host};
use crate::commands::daemon::Daemon;
use crate::commands::model_file;
use crate::compiler::compile_for;
use crate::invoker::{Invoker, Terms};
use crate::random::Random;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_core::scaling::Profile;
use atoll_core::tokens::WINDOW_NS_DEFAULT;
use atoll_engine::{EngineStatistics, ShareClient};
use atoll_fleet::{FleetHandle, Inference};
use atoll_kgraph::ModelOptions;
use atoll_server::ServerConfig;
use atoll_sim::scaling::{
    Controller, FunctionScaling, Sample, Scaled, ScaledFunction, ScalingReport, Shape, simulate_scaling,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name of the model.
const NAME: &str = "model";

/// Clients; a request waits for one only if all of them wait for answers.
const CLIENTS: usize = 64;

/// How often the shares of instances are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long after its time the last instance may still be there.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Time of an instance in percent, as the daemon has it by default.
const QUOTA_PERCENT: u32 = 20;

/// Starts a daemon with the model.
fn start(args: &Args, folder: &Path) -> Result<Daemon> {
    let repository = folder.join("repository");
    std::fs::create_dir(&repository)?;
    let bundle = repository.join(NAME).with_extension("kg");
    let names = args.fleet.device_names();
    let device = *names.first().context("there is a device")?;
    if args.model.ends_with(".kg") {
        std::fs::copy(&args.model, &bundle).with_context(|| format!("cannot read {}", args.model))?;
    } else {
        compile_for(device, &model_file(&args.model, folder, false)?, &ModelOptions::default(), &bundle)?;
    }
    let headroom = args.headroom_percent.map(|percent| format!("headroom_percent = {percent}\n"));
    let headroom = headroom.unwrap_or_default();
    let settings = format!(
        "[scaling]\nlatency_ms = {}\nmax_instances = {}\n{headroom}interval_ms = {}\ncool_down_ms = \
         {}\nidle_ms = {}\n",
        args.latency_ms, args.max_instances, args.interval_ms, args.cool_down_ms, args.idle_ms
    );
    std::fs::write(repository.join(NAME).with_extension("toml"), settings)?;
    Daemon::start(&args.fleet, ServerConfig::new(repository, folder.join("cache")))
}

pub(super) fn run(args: &Args, shape: Shape, seed: u64) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let daemon = start(args, folder.path())?;
    let measured = measure(args, &daemon, shape, seed);
    let devices = args.fleet.device_names().len() as u32;
    daemon.stop()?;
    let Measured { report, from_zero, service_ns, arrivals } = measured?;
    let [oracle, simulated] = simulated(args, devices, service_ns, arrivals);
    let row = Row::of("daemon", shape, seed, devices, &report, oracle);
    let simulated_over_oracle = (oracle > 0.0).then(|| simulated / oracle);
    Ok(Row {
        from_zero_ms: from_zero.map(|from_zero| from_zero.longest_ms),
        from_zero_over_ms: from_zero.map(|from_zero| from_zero.over_ms),
        first_request_ms: row.from_zero_ms,
        simulated_over_oracle,
        created: None,
        moves: None,
        move_cost_device_s: None,
        refused: None,
        ..row
    })
}

struct Measured {
    report: ScalingReport,
    from_zero: Option<FromZero>,
    /// Device time of a request.
    service_ns: u64,
    arrivals: Vec<u64>,
}

/// The device time of an oracle and of the simulated autoscaler on the same load: a request takes
/// what it took on the devices.
fn simulated(args: &Args, devices: u32, service_ns: u64, arrivals: Vec<u64>) -> [f64; 2] {
    let Ok(profile) = Profile::learned(100, QUOTA_PERCENT, service_ns, WINDOW_NS_DEFAULT) else { return [0.0; 2] };
    let function =
        ScaledFunction { name: NAME.into(), profile, config: super::config(args), constant_bytes: 0, arrivals };
    let setup = Scaled {
        hosts: vec![host(super::DEVICE); devices as usize],
        functions: vec![function],
        end_ns: end_ns(args),
        start_ns: args.start_ms * 1_000_000,
        controller: Controller::Autoscaler,
    };
    let autoscaler = simulate_scaling(&setup).promised_device_s;
    [simulate_scaling(&Scaled { controller: Controller::Oracle, ..setup }).promised_device_s, autoscaler]
}

fn measure(args: &Args, daemon: &Daemon, shape: Shape, seed: u64) -> Result<Measured> {
    let arrivals = shape.arrivals(args.low, args.high, end_ns(args), 0.0, seed);
    ensure!(!arrivals.is_empty(), "no request arrives in {} s; use a higher --low or --high", args.seconds);
    let clients = (0..CLIENTS).map(|_| daemon.connect(NAME)).collect::<Result<Vec<Invoker>>>()?;
    let inputs = InputSpecs::default().tensors(clients[0].inputs(), &mut Random::new(seed))?;
    let latencies: Mutex<Vec<(usize, Option<Duration>)>> = Mutex::new(Vec::with_capacity(arrivals.len()));
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begin = Instant::now();
    let client = |invoker: &Invoker| {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&arrival) = arrivals.get(at) else { return };
            // The latency counts from when the request was due, so that delays here are
            // included.
            let due = begin + Duration::from_nanos(arrival);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let answer = invoker.invoke(&inputs, Terms::default());
            let took = answer.is_ok().then(|| due.elapsed());
            latencies.lock().unwrap_or_else(PoisonError::into_inner).push((at, took));
        }
    };
    let client = &client;
    let mut watched = std::thread::scope(|scope| {
        let watch = scope.spawn(|| Watch::run(&daemon.fleet.handle(), &arrivals, begin, &over));
        let asking: Vec<_> = clients.iter().map(|invoker| scope.spawn(move || client(invoker))).collect();
        let ended = asking.into_iter().map(|client| client.join()).collect::<Vec<_>>();
        let rest = (begin + Duration::from_secs(args.seconds)).saturating_duration_since(Instant::now());
        std::thread::sleep(rest);
        over.store(true, Ordering::Relaxed);
        let watched = watch.join();
        ensure!(ended.iter().all(Result::is_ok), "a client panicked");
        watched.map_err(|_| anyhow!("the watch of shares panicked"))
    })?;
    let latencies = latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
    let function = function(args, &latencies);
    let answered = function.latencies_ns.len() as u64;
    ensure!(answered > 0, "no request was answered; the daemon's log says why");
    let service_ns = (watched.received_ns / answered).max(1);
    // What instances serve follows from the device time of a request.
    watched.samples.iter_mut().for_each(|sample| sample.capacity *= 1e9 / service_ns as f64);
    let report = ScalingReport {
        functions: vec![function],
        promised_device_s: watched.promised_s,
        used_device_s: watched.used_s,
        devices_max: watched.devices_max,
        fullest: 0.0,
        moves: 0,
        move_cost_device_s: 0.0,
        refused: 0,
        samples: watched.samples,
    };
    let idle = Duration::from_millis(args.idle_ms + args.cool_down_ms + args.interval_ms) + GONE_WITHIN;
    let ask = || clients[0].invoke(&inputs, Terms::default()).map(drop);
    let from_zero = zero::measure(&daemon.fleet.handle(), ask, args.from_zero, idle)?;
    Ok(Measured { report, from_zero, service_ns, arrivals })
}

fn function(args: &Args, latencies: &[(usize, Option<Duration>)]) -> FunctionScaling {
    let ns = |took: Duration| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let mut latencies_ns: Vec<u64> = latencies.iter().filter_map(|(_, took)| took.map(ns)).collect();
    latencies_ns.sort_unstable();
    let slo_ns = args.latency_ms * 1_000_000;
    let unserved = (latencies.len() - latencies_ns.len()) as u64;
    let late = latencies_ns.iter().filter(|latency| **latency > slo_ns).count() as u64;
    let first = latencies.iter().find(|(at, _)| *at == 0).and_then(|(_, took)| *took);
    FunctionScaling {
        name: NAME.into(),
        requests: latencies.len() as u64,
        misses: late + unserved,
        unserved,
        latencies_ns,
        from_zero_ns: first.map(ns),
        ..FunctionScaling::default()
    }
}

/// What was seen of the shares of instances.
#[derive(Default)]
struct Watch {
    promised_s: f64,
    used_s: f64,
    devices_max: u64,
    /// The device time that instances received, in nanoseconds.
    received_ns: u64,
    /// The device time that each instance had received on each device at the last look.
    counters: BTreeMap<(String, ShareClient), u64>,
    samples: Vec<Sample>,
}

impl Watch {
    fn run(fleet: &FleetHandle, arrivals: &[u64], begin: Instant, over: &AtomicBool) -> Watch {
        let (mut watch, mut last) = (Watch::default(), begin);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY);
            let statistics = fleet.statistics();
            let now = Instant::now();
            watch.look(&statistics, now.duration_since(last));
            let [since, until] = [last, now].map(|at| u64::try_from((at - begin).as_nanos()).unwrap_or(u64::MAX));
            let before = |time: u64| arrivals.partition_point(|at| *at < time);
            let arrived = (before(until) - before(since)) as f64;
            if let Some(sample) = watch.samples.last_mut() {
                sample.at_ns = until;
                sample.rate = arrived / now.duration_since(last).as_secs_f64().max(1e-9);
            }
            last = now;
        }
        watch
    }

    fn look(&mut self, statistics: &[EngineStatistics], passed: Duration) {
        let (mut sample, mut devices) = (Sample::default(), BTreeSet::new());
        let mut promised = 0.0;
        for engine in statistics {
            for share in engine.shares.iter().filter(|share| share.client.instance.is_some()) {
                let millionths = |part: atoll_core::tokens::Ppm| f64::from(part.millionths()) / 1e6;
                promised += millionths(share.share.request()) * millionths(share.granted);
                devices.insert(engine.device.name.clone());
                sample.instances += 1;
                let key = (engine.device.name.clone(), share.client.clone());
                let before = self.counters.insert(key, share.received_ns).unwrap_or(0);
                // The counter of an instance that was created again begins at 0.
                let is_new = share.received_ns < before;
                self.received_ns += share.received_ns - if is_new { 0 } else { before };
            }
        }
        sample.devices = devices.len() as u64;
        self.promised_s += promised * passed.as_secs_f64();
        self.used_s += sample.devices as f64 * passed.as_secs_f64();
        self.devices_max = self.devices_max.max(sample.devices);
        // In devices, until the device time of a request is known.
        sample.capacity = promised;
        self.samples.push(sample);
    }
}
