//! A device and an engine with best-effort clients that keep it busy, and a real-time function that
//! preempts them.

use super::Args;
use crate::commands::spin::{Shape, spin};
use crate::device_name::DeviceName;
use crate::engine::bench_engine;
use crate::failure::user_error;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT;
use atoll_device_host::HostConfig;
use atoll_engine::{
    ChainRequest, Class, Engine, EngineConfig, EngineHandle, EngineStatistics, FunctionKey, FunctionOptions,
    InvocationRequest, InvocationResult, StageRequest,
};
use atoll_kgraph::Bundle;
use atoll_pipeline::Target;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Outstanding invocations of a client: one runs, and a second one waits.
const OUTSTANDING: usize = 2;

/// Longest wait for the start of best-effort work; long graphs have to be bound first.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);

/// Pause between real-time requests (minimum and maximum). Device queues refill much faster.
const PAUSE_US: (u64, u64) = (1_500, 4_000);

/// Loop iterations of the calibration kernel, and number of runs; the fastest run counts.
const CALIBRATION_ROUNDS: u32 = 200_000;
const CALIBRATIONS: u32 = 15;

/// Blocks that fill a GPU's compute unit: two on those with 2048 threads; on smaller ones the
/// second block waits.
const GPU_BLOCKS_PER_UNIT: u32 = 2;
const GPU_BLOCK_THREADS: u32 = 1024;

/// Parameters of one row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting<'a> {
    pub(super) policy: &'a str,
    /// Kernels of one best-effort invocation, and thus the minimum number of waiting kernels.
    pub(super) queued: u32,
    /// Duration of one kernel on all compute units.
    pub(super) kernel_us: u32,
    pub(super) clients: u32,
    pub(super) capacity: u32,
}

/// Times of one real-time request, in nanoseconds since it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When it reached the scheduler.
    pub(super) entered_ns: u64,
    /// When its first block started.
    pub(super) started_ns: u64,
}

/// Bundles by shape, number of kernels and iterations; many rows use the same ones.
#[derive(Debug)]
pub(super) struct Bundles {
    target: Target,
    /// One block per compute unit.
    urgent: Shape,
    /// The whole device.
    work: Shape,
    rounds_per_us: f64,
    made: HashMap<(Shape, u32, u32), Arc<Bundle>>,
}

impl Bundles {
    /// Measures the speed of the kernel on an idle device.
    pub(super) fn calibrated(args: &Args) -> Result<Bundles> {
        let engine = start(args, "reset", DEVICE_QUEUE_CAPACITY_DEFAULT)?;
        let handle = engine.handle();
        let units = handle.device_info().compute_units;
        let urgent = Shape { blocks: units, threads: 32 };
        let (target, work) = match args.device {
            DeviceName::Host => (Target::this_host(), urgent),
            DeviceName::Cuda(_) => {
                (Target::NVIDIA, Shape { blocks: GPU_BLOCKS_PER_UNIT * units, threads: GPU_BLOCK_THREADS })
            }
            DeviceName::Hip(_) => {
                return Err(user_error("preemption on AMD GPUs is not measured yet; use --device host or cuda"));
            }
        };
        let mut bundles = Bundles { target, urgent, work, rounds_per_us: 1.0, made: HashMap::new() };
        load(&handle, "work", &bundles.of(work, 1, CALIBRATION_ROUNDS)?, Class::RealTime)?;
        let runs: Result<Vec<u64>> =
            (0..CALIBRATIONS).map(|_| call(&handle, "work").map(|result| result.timing.compute_ns)).collect();
        engine.shutdown();
        let fastest_ns = runs?.into_iter().min().unwrap_or(0).max(1);
        bundles.rounds_per_us = f64::from(CALIBRATION_ROUNDS) * 1e3 / fastest_ns as f64;
        Ok(bundles)
    }

    fn lasting(&mut self, kernels: u32, kernel_us: u32) -> Result<Arc<Bundle>> {
        self.of(self.work, kernels, (f64::from(kernel_us) * self.rounds_per_us).max(1.0) as u32)
    }

    pub(super) fn units(&self) -> u32 {
        self.urgent.blocks
    }

    /// A graph of `kernels` kernels, one after the other.
    fn of(&mut self, shape: Shape, kernels: u32, rounds: u32) -> Result<Arc<Bundle>> {
        if let Some(bundle) = self.made.get(&(shape, kernels, rounds)) {
            return Ok(bundle.clone());
        }
        let bundle = spin(self.target, shape, kernels, rounds)?;
        self.made.insert((shape, kernels, rounds), bundle.clone());
        Ok(bundle)
    }
}

/// Preempts best-effort work with each real-time request; also returns the engine's statistics
/// afterwards.
pub(super) fn measure(
    args: &Args,
    setting: Setting<'_>,
    bundles: &mut Bundles,
    seed: u64,
) -> Result<(Vec<Sample>, EngineStatistics)> {
    let (urgent, work) = (bundles.of(bundles.urgent, 1, 1)?, bundles.lasting(setting.queued, setting.kernel_us)?);
    let engine = start(args, setting.policy, setting.capacity)?;
    let handle = engine.handle();
    load(&handle, "urgent", &urgent, Class::RealTime)?;
    call(&handle, "urgent")?;
    let clients: Result<Vec<Client>> =
        (0..setting.clients).map(|index| Client::start(&handle, &format!("be{index}"), &work)).collect();
    let clients = clients?;
    let begun = Instant::now();
    while handle.statistics().issued_launches <= u64::from(setting.capacity) {
        ensure!(begun.elapsed() < BEGIN_WITHIN, "best-effort work did not start within {} s", BEGIN_WITHIN.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut random = Random::new(seed);
    let samples: Result<Vec<Sample>> = (0..args.count.get()).map(|_| disturb(&handle, &mut random)).collect();
    let statistics = handle.statistics();
    clients.into_iter().for_each(Client::stop);
    engine.shutdown();
    Ok((samples?, statistics))
}

fn disturb(handle: &EngineHandle, random: &mut Random) -> Result<Sample> {
    let (least, most) = PAUSE_US;
    std::thread::sleep(Duration::from_micros(least + random.next_u64() % (most - least)));
    let sent_ns = now_ns();
    let result = call(handle, "urgent")?;
    let started_ns = result.launches.iter().map(|launch| launch.started_ns).min().context("a launch was not timed")?;
    let since = |ns: u64| ns.saturating_sub(sent_ns);
    Ok(Sample { entered_ns: since(result.entered_ns), started_ns: since(started_ns) })
}

/// A best-effort client that always has a whole invocation waiting.
struct Client {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Client {
    fn start(handle: &EngineHandle, function: &str, bundle: &Arc<Bundle>) -> Result<Client> {
        load(handle, function, bundle, Class::BestEffort)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (handle, stopping, key) = (handle.clone(), stop.clone(), FunctionKey::local(function));
        let thread = std::thread::spawn(move || keep_busy(&handle, &key, &stopping));
        Ok(Client { stop, thread })
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // A panic has already been reported.
        let _ = self.thread.join();
    }
}

fn keep_busy(handle: &EngineHandle, function: &FunctionKey, stop: &AtomicBool) {
    let outstanding = Arc::new(());
    let mut ids = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while Arc::strong_count(&outstanding) <= OUTSTANDING {
            let (held, me) = (outstanding.clone(), std::thread::current());
            let request = InvocationRequest {
                function: function.clone(),
                inputs: Vec::new(),
                class: None,
                priority: 0,
                instance: None,
                deadline: None,
            };
            let reply = move |_| {
                drop(held);
                me.unpark();
            };
            ids.push(handle.submit(request, Box::new(reply)));
        }
        std::thread::park();
    }
    ids.into_iter().rev().take(OUTSTANDING).for_each(|id| handle.cancel(id));
}

fn start(args: &Args, policy: &str, capacity: u32) -> Result<Engine> {
    if args.device != DeviceName::Host {
        return bench_engine(args.device, 0, policy, capacity);
    }
    let host = HostConfig {
        compute_units: args.host_units(),
        memory_bytes: 1 << 30,
        queue_capacity: capacity,
        ..HostConfig::default()
    };
    let config = EngineConfig { policy: policy.into(), device_queue_capacity: capacity, ..EngineConfig::default() };
    let device = args.isolation.host_device(host)?;
    Ok(Engine::start(device, config)?)
}

fn load(handle: &EngineHandle, name: &str, bundle: &Arc<Bundle>, class: Class) -> Result<()> {
    let options = FunctionOptions {
        key: FunctionKey::local(name),
        class,
        queue_capacity: None,
        lane: Default::default(),
        batching: None,
    };
    handle.load(bundle.clone(), options).with_context(|| format!("cannot load {name}"))?;
    Ok(())
}

/// Invokes a function without inputs, with timed launches.
fn call(handle: &EngineHandle, function: &str) -> Result<InvocationResult> {
    let stage =
        StageRequest { function: FunctionKey::local(function), inputs: Vec::new(), outputs: None, retain: Vec::new() };
    let request = ChainRequest {
        stages: vec![stage],
        class: None,
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: true,
    };
    let (answer, answered) = mpsc::sync_channel(1);
    handle.submit_chain(request, Box::new(move |result| drop(answer.send(result))));
    Ok(answered.recv().context("the engine ended")??)
}

/// The clock that launches are timed with.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
