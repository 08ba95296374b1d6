//! Best-effort blocks that run beside real-time launches on the host device, in modules that are made while requests flow.

use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_device::{HostConfig, HostDevice};
use atoll_engine::{
    Class, Engine, EngineConfig, EngineHandle, EngineStatistics, FunctionKey, FunctionOptions, InputTensor, InvocationRequest,
    OutputTensor, PaddingModule, PaddingService,
};
use atoll_kgraph::{BufferKind, Bundle, InvocationLayout, NodeProfile, Profile, ShapeProfile};
use atoll_pipeline::{PaddedKernels, Target, pad_bundles};
use atoll_tests::http::ask;
use atoll_tests::{built_small, compile, full};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// More than the machine may have: what matters is that launches leave some of them.
const COMPUTE_UNITS: u32 = 6;

/// The compiler as the program plugs it in, with profiles by which everything of one model fits beside anything of the others.
#[derive(Debug)]
struct Service {
    slow: String,
}

impl PaddingService for Service {
    fn profile(&self, bundle: &Bundle, device: &str, compute_units: u32) -> Option<Profile> {
        let (graph, target) = (bundle.graph(), bundle.target(Target::this_host().name())?);
        let layout = InvocationLayout::new(graph, target, &[]).ok()?;
        let wave_ns = if graph.name == self.slow { 1_000_000 } else { 10_000 };
        let launch = |(node, launch): (usize, &Option<atoll_kgraph::LaunchLayout>)| {
            let blocks = launch.as_ref()?.grid.iter().product();
            Some(NodeProfile { node: node as u32, kernel: String::new(), blocks, total_ns: wave_ns, gap_ns: 0, wave_ns: vec![wave_ns] })
        };
        let launches = layout.launches.iter().enumerate().filter_map(launch).collect();
        let mut profile = Profile::new(bundle.digest(), &graph.name, device, compute_units);
        profile.insert(ShapeProfile { symbols: Vec::new(), runs: 1, before_ns: 0, total_ns: 1, after_ns: 0, launches });
        Some(profile)
    }

    fn compile(&self, target: &str, bundles: &[Arc<Bundle>]) -> Result<PaddingModule, String> {
        let target: Target = target.parse().map_err(|_| "an unknown target".to_owned())?;
        let padded = pad_bundles(target, bundles, None).map_err(|error| error.to_string())?;
        let PaddedKernels { code, kernel, facts, kernels } = padded.ok_or("no kernel can share launches")?;
        Ok(PaddingModule { code, kernel, facts, kernels })
    }
}

fn engine(policy: &str, padding: Option<Arc<dyn PaddingService>>) -> Result<Engine> {
    let device = HostDevice::start(HostConfig { compute_units: COMPUTE_UNITS, ..HostConfig::default() })?;
    Ok(Engine::start(Box::new(device), EngineConfig { policy: policy.into(), padding, ..EngineConfig::default() })?)
}

/// A model and inputs for it.
#[derive(Clone)]
struct Caller {
    handle: EngineHandle,
    bundle: Arc<Bundle>,
    class: Class,
}

impl Caller {
    fn load(engine: &Engine, bundle: &Arc<Bundle>, class: Class) -> Result<Caller> {
        let handle = engine.handle();
        handle.load(bundle.clone(), FunctionOptions { key: FunctionKey::local(&bundle.graph().name), class, queue_capacity: None })?;
        Ok(Caller { handle, bundle: bundle.clone(), class })
    }

    /// Calls with inputs of a seed.
    fn call(&self, seed: u64) -> Result<Vec<OutputTensor>> {
        let inputs = self.bundle.graph().buffers_of(BufferKind::Input).map(|(_, spec)| {
            let shape: Vec<i64> = spec.shape.iter().map(|size| size.eval(&[]).unwrap_or(1)).collect();
            let count = shape.iter().product::<i64>() as u64;
            let value = |i: u64| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 7) % 1000) as f32 / 1000.0;
            InputTensor { bytes: (0..count).flat_map(|i| value(i).to_le_bytes()).collect(), shape }
        });
        let function = FunctionKey::local(&self.bundle.graph().name);
        let request = InvocationRequest { function, inputs: inputs.collect(), class: Some(self.class), priority: 0, deadline: None };
        let (answer, answered) = mpsc::channel();
        self.handle.submit(request, Box::new(move |result| drop(answer.send(result))));
        Ok(answered.recv()??.outputs)
    }

    fn expect(&self, seed: u64, expected: &[Vec<OutputTensor>]) -> Result<()> {
        let found = self.call(seed % expected.len() as u64)?;
        ensure!(found == expected[seed as usize % expected.len()], "{} with inputs {seed} gives something else", self.bundle.graph().name);
        Ok(())
    }
}

/// What a model gives for a few inputs, undisturbed.
fn undisturbed(bundle: &Arc<Bundle>) -> Result<Vec<Vec<OutputTensor>>> {
    let engine = engine("reset", None)?;
    let caller = Caller::load(&engine, bundle, Class::BestEffort)?;
    let outputs = (0..3).map(|seed| caller.call(seed)).collect();
    engine.shutdown();
    outputs
}

fn until(handle: &EngineHandle, what: &str, holds: impl Fn(&EngineStatistics) -> bool) -> Result<EngineStatistics> {
    let end = Instant::now() + Duration::from_secs(240);
    loop {
        let statistics = handle.statistics();
        if holds(&statistics) {
            return Ok(statistics);
        }
        ensure!(Instant::now() < end, "{what} does not come: {statistics:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn models(folder: &Path) -> Result<[Arc<Bundle>; 2]> {
    let [rt, be] = ["squeezenet", "mobilenet_v2"].map(|name| compile(&built_small(name, folder)?, folder));
    Ok([rt?, be?])
}

#[test]
fn what_runs_beside_others_gives_what_it_gives_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [rt, be] = models(folder.path())?;
    let expected = [undisturbed(&rt)?, undisturbed(&be)?];
    let engine = engine("reef", Some(Arc::new(Service { slow: rt.graph().name.clone() })))?;
    let urgent = Caller::load(&engine, &rt, Class::RealTime)?;
    let over = Arc::new(AtomicBool::new(false));
    let flow = {
        // Real-time requests flow from now on, whatever is loaded.
        let (urgent, over, expected) = (urgent.clone(), over.clone(), expected[0].clone());
        std::thread::spawn(move || -> Result<u64> {
            let mut calls = 0;
            while !over.load(Ordering::Relaxed) {
                urgent.expect(calls, &expected)?;
                calls += 1;
                // Now and then the device is all best-effort work's, so that launches are evicted and go on.
                std::thread::sleep(Duration::from_millis(calls % 4));
            }
            Ok(calls)
        })
    };
    let patient = Caller::load(&engine, &be, Class::BestEffort)?;
    let with_both = until(&patient.handle, "a module of both models", |s| s.padding_candidates > rt.graph().nodes.len() as u64)?;
    let calls = if full() { 200 } else { 12 };
    let answers: Result<Vec<()>> = (0..calls).map(|seed| patient.expect(seed, &expected[1])).collect();
    over.store(true, Ordering::Relaxed);
    let urgent_calls = flow.join().ok().context("the thread panicked")?;
    answers?;
    ensure!(urgent_calls? > 0, "real-time requests were answered meanwhile");
    let after = patient.handle.statistics();
    ensure!(after.padded_launches > with_both.padded_launches && after.padding_blocks > after.padded_launches, "{after:?}");
    // Whoever ran beside others pays for it.
    let billed: u128 = after.usage.iter().map(|row| row.usage.compute_unit_ns).sum();
    ensure!(
        billed == u128::from(after.device.busy_ns.unwrap_or(0)),
        "{billed} ns are on bills, the device counted {:?}",
        after.device.busy_ns
    );

    for bundle in [&be, &rt] {
        patient.handle.unload(&FunctionKey::local(&bundle.graph().name))?;
    }
    until(&patient.handle, "the end of the module", |s| s.padding_modules == 0)?;
    engine.shutdown();
    Ok(())
}

#[test]
fn a_daemon_makes_a_module_of_what_was_profiled() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (repository, cache) = (folder.path().join("models"), folder.path().join("cache"));
    [&repository, &cache].into_iter().try_for_each(std::fs::create_dir)?;
    let bundle = compile(&built_small("squeezenet", folder.path())?, &repository)?;
    let mut profile = Command::new(atoll());
    profile.args(["profile", "--runs", "2", "--compute-units", "2", "--json"]).arg(bundle.path()).env("XDG_CACHE_HOME", &cache);
    ensure!(profile.output()?.status.success(), "the model is profiled");
    let daemon = Daemon::start_with(&repository, &cache, &["--policy", "reef", "--compute-units", "2"])?;
    let end = Instant::now() + Duration::from_secs(240);
    loop {
        let (_, metrics) = ask(&daemon.metrics, "GET", "/metrics", "")?;
        let candidates = metrics.lines().find_map(|line| line.strip_prefix("atoll_padding_candidates ")).context("the metric")?;
        if candidates.parse::<f64>()? > 0.0 {
            break;
        }
        ensure!(Instant::now() < end, "the module does not come:\n{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = Command::new(atoll()).args(["infer", "--model", "squeezenet", "--priority", "1", "--url", &daemon.http]).output()?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    Ok(())
}
