//! Padding: best-effort blocks in real-time launches, with modules that are compiled while requests
//! are running. On the host device, and on the stand-in GPU.

use crate::cuda;
use crate::serve::{Daemon, atoll};
use anyhow::{Context, Result, ensure};
use atoll_device_host::{HostConfig, HostDevice};
use atoll_engine::{
    Class, Engine, EngineConfig, EngineHandle, EngineStatistics, FunctionKey, FunctionOptions, InputTensor,
    InvocationRequest, OutputTensor, PaddingModule, PaddingService,
};
use atoll_executor::{ExecutorConfig, ExecutorPool};
use atoll_kgraph::{BufferKind, Bundle, InvocationLayout, NodeProfile, Profile, ShapeProfile};
use atoll_pipeline::{CompileOptions, PaddedKernels, Silent, Target, pack, pad_bundles};
use atoll_target_nvidia::find_ptxas;
use atoll_tests::http::ask;
use atoll_tests::{built_small, compile, full, kernel_cache, root, skip};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// May exceed the machine's CPUs: what matters is that launches leave some compute units idle.
const COMPUTE_UNITS: u32 = 6;

/// Longest time until real-time launches are padded, on a slow machine.
const SHARES_WITHIN: Duration = Duration::from_secs(60);

/// Rounds of the loops of real-time kernels: a launch takes long enough for others to arrive.
pub(crate) const ROUNDS: u32 = 10_000;

/// The compiler as in the program, with profiles by which everything of one model fits beside
/// anything of the others.
#[derive(Debug)]
struct Service {
    target: Target,
    slow: String,
}

impl PaddingService for Service {
    fn profile(&self, bundle: &Bundle, device: &str, compute_units: u32) -> Option<Profile> {
        let (graph, target) = (bundle.graph(), bundle.target(self.target.name())?);
        let layout = InvocationLayout::new(graph, target, &[]).ok()?;
        let wave_ns = if graph.name == self.slow { 1_000_000 } else { 10_000 };
        let launch = |(node, launch): (usize, &Option<atoll_kgraph::LaunchLayout>)| {
            let blocks = launch.as_ref()?.grid.iter().product();
            Some(NodeProfile {
                node: node as u32,
                kernel: String::new(),
                blocks,
                total_ns: wave_ns,
                gap_ns: 0,
                wave_ns: vec![wave_ns],
            })
        };
        let launches = layout.launches.iter().enumerate().filter_map(launch).collect();
        let mut profile = Profile::new(bundle.digest(), &graph.name, device, compute_units);
        profile.insert(ShapeProfile { symbols: Vec::new(), runs: 1, before_ns: 0, total_ns: 1, after_ns: 0, launches });
        Some(profile)
    }

    fn compile(&self, target: &str, bundles: &[Arc<Bundle>]) -> Result<Vec<PaddingModule>, String> {
        let target: Target = target.parse().map_err(|_| "an unknown target".to_owned())?;
        let padded = pad_bundles(target, bundles, kernel_cache()).map_err(|error| error.to_string())?;
        let module =
            |PaddedKernels { code, kernels, facts, candidates }| PaddingModule { code, kernels, facts, candidates };
        Ok(padded.into_iter().map(module).collect())
    }
}

/// Two functions, of which the first is real-time, and the engine to run them.
pub(crate) struct Bed {
    target: Target,
    pub(crate) bundles: [Arc<Bundle>; 2],
    engine: fn(EngineConfig) -> Result<Engine>,
}

impl Bed {
    /// Models on the host device.
    fn models(folder: &Path, engine: fn(EngineConfig) -> Result<Engine>) -> Result<Bed> {
        // Modules with the many kernels of the former take long to compile.
        let best_effort = if full() { "mobilenet_v2" } else { "vgg19" };
        let [rt, be] = ["squeezenet", best_effort].map(|name| compile(&built_small(name, folder)?, folder));
        Ok(Bed { target: Target::this_host(), bundles: [rt?, be?], engine })
    }

    /// Functions with a few kernels, which compile quickly. The real-time one leaves half of the
    /// stand-in's compute units idle, and more of the host device's. Its loops have `rounds` rounds.
    pub(crate) fn functions(
        target: Target,
        rounds: u32,
        folder: &Path,
        engine: fn(EngineConfig) -> Result<Engine>,
    ) -> Result<Bed> {
        let functions = root().join("tests/functions");
        let text = std::fs::read_to_string(functions.join("restless.toml"))?;
        // More launches than the capacity of a device queue, so that some are issued after
        // best-effort work was evicted.
        let step = |kernel: &str, out: &str| {
            format!("{{ kernel = \"{kernel}\", grid = [2], block = [64], args = [\"x\", \"{out}\", {rounds}] }}")
        };
        let steps = [step("flushes", "flushed"), step("keeps", "kept"), step("rounds", "rounded")].join(", ");
        let head = text
            .split("[[step]]")
            .next()
            .unwrap_or_default()
            .replace("\"restless\"", "\"urgent\"")
            .replace("[256]", "[128]");
        let half = format!("{head}[[step]]\nrepeat = 10\nsteps = [{steps}]\n");
        std::fs::copy(functions.join("restless.ptx"), folder.join("restless.ptx"))?;
        let text = text.replace("1000]", &format!("{}]", rounds.min(1000)));
        let bundles = [packed(&half, folder, target)?, packed(&text, folder, target)?];
        Ok(Bed { target, bundles, engine })
    }

    /// Results of a function for a few inputs, without padding.
    fn undisturbed(&self, bundle: &Arc<Bundle>) -> Result<Vec<Vec<OutputTensor>>> {
        let engine = (self.engine)(EngineConfig { policy: "reset".into(), ..EngineConfig::default() })?;
        let caller = Caller::load(&engine, bundle, Class::BestEffort)?;
        let outputs = (0..3).map(|seed| caller.call(seed)).collect();
        engine.shutdown();
        outputs
    }

    /// Runs both functions, and checks that launches were shared. Returns the statistics.
    pub(crate) fn shares_launches(&self) -> Result<EngineStatistics> {
        let [before, after] = self.run(calls(12), |_| Ok(()))?;
        ensure!(
            after.padded_launches > before.padded_launches && after.padding_blocks > after.padded_launches,
            "{after:?}"
        );
        Ok(after)
    }

    /// Calls both functions while modules are compiled, then `calls` times more while `meanwhile`
    /// runs, and checks every result. Returns the statistics before and after.
    pub(crate) fn run(&self, calls: u64, meanwhile: fn(&EngineHandle) -> Result<()>) -> Result<[EngineStatistics; 2]> {
        let [rt, be] = &self.bundles;
        let expected = [self.undisturbed(rt)?, self.undisturbed(be)?];
        let service = Service { target: self.target, slow: rt.graph().name.clone() };
        let engine = (self.engine)(EngineConfig {
            policy: "reef".into(),
            padding: Some(Arc::new(service)),
            ..EngineConfig::default()
        })?;
        let urgent = Caller::load(&engine, rt, Class::RealTime)?;
        let over = Arc::new(AtomicBool::new(false));
        let flow = {
            // Real-time requests run from now on.
            let (urgent, over, expected) = (urgent.clone(), over.clone(), expected[0].clone());
            std::thread::spawn(move || -> Result<u64> {
                let mut calls = 0;
                while !over.load(Ordering::Relaxed) {
                    urgent.expect(calls, &expected)?;
                    calls += 1;
                    // Pauses leave the whole device to best-effort work, so that its launches are
                    // evicted and resumed.
                    std::thread::sleep(Duration::from_millis(calls % 4));
                }
                Ok(calls)
            })
        };
        let best_effort = Caller::load(&engine, be, Class::BestEffort)?;
        let of_one = rt.target(self.target.name()).map_or(0, |image| image.kernels.len() as u64);
        let is_padded = |s: &EngineStatistics| s.padding_candidates > of_one && s.padded_launches > 0;
        let called = |calls: u64| (0..calls).try_for_each(|seed| best_effort.expect(seed, &expected[1]));
        let before = std::thread::scope(|scope| {
            let paddable = scope.spawn(|| until(&best_effort.handle, "a module of both, in use", is_padded));
            while !paddable.is_finished() {
                called(1)?;
            }
            paddable.join().ok().context("the thread panicked")?
        });
        let answers = before.and_then(|before| {
            std::thread::scope(|scope| {
                let meanwhile = scope.spawn(|| meanwhile(&best_effort.handle));
                let mut answers = called(calls);
                // On a busy machine real-time and best-effort launches may miss each other for a
                // while.
                let shares = || best_effort.handle.statistics().padded_launches > before.padded_launches;
                let end = Instant::now() + SHARES_WITHIN;
                while answers.is_ok() && (!meanwhile.is_finished() || !shares() && Instant::now() < end) {
                    answers = called(1);
                }
                meanwhile.join().ok().context("the thread panicked")??;
                answers
            })?;
            Ok(before)
        });
        over.store(true, Ordering::Relaxed);
        // An error there explains a lack of padding here.
        let urgent_calls = flow.join().ok().context("the thread panicked")??;
        let before = answers?;
        ensure!(urgent_calls > 0, "real-time requests were answered meanwhile");
        let after = best_effort.handle.statistics();
        for bundle in [be, rt] {
            best_effort.handle.unload(&FunctionKey::local(&bundle.graph().name))?;
        }
        until(&best_effort.handle, "the end of the module", |s| s.padding_modules == 0)?;
        engine.shutdown();
        Ok([before, after])
    }
}

/// Packs a function with this manifest; the other files are in a folder.
pub(crate) fn packed(manifest: &str, folder: &Path, target: Target) -> Result<Arc<Bundle>> {
    let (toml, path) = (folder.join("function.toml"), folder.join("function.kg"));
    std::fs::write(&toml, manifest)?;
    let options = CompileOptions { targets: vec![target], kernel_cache: kernel_cache(), ..CompileOptions::default() };
    pack(&toml, &path, &options, &Silent)?;
    // The bundle stays mapped after its file is deleted.
    Ok(Bundle::open(&path)?)
}

fn host() -> HostConfig {
    HostConfig { compute_units: COMPUTE_UNITS, ..HostConfig::default() }
}

fn host_engine(config: EngineConfig) -> Result<Engine> {
    Ok(Engine::start(Box::new(HostDevice::start(host())?), config)?)
}

/// Like [`host_engine`], with the compute units in an executor.
fn host_engine_behind_executor(config: EngineConfig) -> Result<Engine> {
    let executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(host())? };
    Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config)?)
}

/// A model and its inputs.
#[derive(Clone)]
struct Caller {
    handle: EngineHandle,
    bundle: Arc<Bundle>,
    class: Class,
}

impl Caller {
    fn load(engine: &Engine, bundle: &Arc<Bundle>, class: Class) -> Result<Caller> {
        let handle = engine.handle();
        handle.load(
            bundle.clone(),
            FunctionOptions {
                key: FunctionKey::local(&bundle.graph().name),
                class,
                queue_capacity: None,
                lane: Default::default(),
                batching: None,
            },
        )?;
        Ok(Caller { handle, bundle: bundle.clone(), class })
    }

    /// Calls with the inputs of a seed.
    fn call(&self, seed: u64) -> Result<Vec<OutputTensor>> {
        let inputs = self.bundle.graph().buffers_of(BufferKind::Input).map(|(_, spec)| {
            let shape: Vec<i64> = spec.shape.iter().map(|size| size.eval(&[]).unwrap_or(1)).collect();
            let count = shape.iter().product::<i64>() as u64;
            let value = |i: u64| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 7) % 1000) as f32 / 1000.0;
            InputTensor {
                dtype: Some(spec.dtype),
                bytes: (0..count).flat_map(|i| value(i).to_le_bytes()).collect(),
                shape,
            }
        });
        let function = FunctionKey::local(&self.bundle.graph().name);
        let request = InvocationRequest {
            function,
            inputs: inputs.collect(),
            class: Some(self.class),
            priority: 0,
            instance: None,
            deadline: None,
        };
        let (answer, answered) = mpsc::channel();
        self.handle.submit(request, Box::new(move |result| drop(answer.send(result))));
        Ok(answered.recv()??.outputs)
    }

    fn expect(&self, seed: u64, expected: &[Vec<OutputTensor>]) -> Result<()> {
        let found = self.call(seed % expected.len() as u64)?;
        let (name, expected) = (&self.bundle.graph().name, &expected[seed as usize % expected.len()]);
        ensure!(found == *expected, "{name} with inputs {seed} gives a different result");
        Ok(())
    }
}

fn until(handle: &EngineHandle, what: &str, holds: impl Fn(&EngineStatistics) -> bool) -> Result<EngineStatistics> {
    let end = Instant::now() + Duration::from_secs(240);
    loop {
        let statistics = handle.statistics();
        if holds(&statistics) {
            return Ok(statistics);
        }
        ensure!(Instant::now() < end, "timed out waiting for {what}: {statistics:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number of calls, larger in a full run.
fn calls(few: u64) -> u64 {
    if full() { 200 } else { few }
}

#[test]
fn padded_kernels_give_the_same_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let after = Bed::models(folder.path(), host_engine)?.shares_launches()?;
    // Co-scheduled blocks are billed to their own function.
    let billed: u128 = after.usage.iter().map(|row| row.usage.compute_unit_ns).sum();
    ensure!(
        billed == u128::from(after.device.busy_ns.unwrap_or(0)),
        "{billed} ns are on bills, the device counted {:?}",
        after.device.busy_ns
    );
    Ok(())
}

#[test]
fn padded_kernels_on_a_gpu_give_the_same_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bed = Bed::functions(Target::NVIDIA, ROUNDS, folder.path(), cuda::engine)?;
    match find_ptxas() {
        None => skip("ptxas is not installed; `make setup` installs it"),
        Some(ptxas) => {
            for padded in pad_bundles(bed.target, &bed.bundles, None)? {
                let report = ptxas.assemble(std::str::from_utf8(&padded.code)?, "sm_90")?.report;
                ensure!(report.kernels.values().all(|kernel| kernel.spill_bytes() == 0), "it spills: {report:?}");
            }
        }
    }
    bed.shares_launches().map(drop)
}

/// Kills the executor several times, each time after some launches were padded. One more loss
/// within a minute would make the domain unavailable.
pub(crate) fn kill_executors(handle: &EngineHandle) -> Result<()> {
    for _ in 0..if full() { 4 } else { 2 } {
        let shared = handle.statistics().padded_launches;
        let shares = |s: &EngineStatistics| {
            s.padded_launches > shared && s.device.executors.processes.iter().any(|process| process.pid.is_some())
        };
        let statistics = until(handle, "shared launches", shares)?;
        let pid =
            statistics.device.executors.processes.iter().find_map(|process| process.pid).context("an executor")?;
        kill_process(Pid::from_raw(pid.cast_signed()).context("a number")?, Signal::KILL)?;
        until(handle, "another executor", |s| {
            s.device.executors.processes.iter().any(|process| process.pid.is_some_and(|now| now != pid))
        })?;
        // A retried invocation is not killed again.
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

#[test]
fn all_invocations_of_a_padded_launch_are_retried_when_their_executor_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [_, after] = Bed::functions(Target::this_host(), ROUNDS, folder.path(), host_engine_behind_executor)?
        .run(calls(2), kill_executors)?;
    ensure!(after.retries > 0, "{after:?}");
    Ok(())
}

#[test]
fn all_invocations_of_a_padded_launch_are_retried_when_their_gpu_is_lost() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [_, after] = Bed::functions(Target::NVIDIA, ROUNDS, folder.path(), cuda::engine_behind_executor)?
        .run(calls(2), kill_executors)?;
    ensure!(after.retries > 0, "{after:?}");
    Ok(())
}

/// Traps in its third block if the first element of the input is above 0.01, which holds for every
/// third seed of [`Caller::call`].
const STUMBLES: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry stumbles(.param .u64 x, .param .u64 out)
{
	.reg .pred %high, %third, %traps;
	.reg .f32 %first;
	.reg .b32 %block;
	.reg .b64 %x, %out;
	ld.param.u64 %x, [x];
	ld.param.u64 %out, [out];
	ld.global.f32 %first, [%x];
	mov.u32 %block, %ctaid.x;
	setp.gt.f32 %high, %first, 0f3C23D70A;
	setp.eq.u32 %third, %block, 2;
	and.pred %traps, %high, %third;
	@%traps trap;
	st.global.f32 [%out], %first;
	ret;
}
";

const STUMBLES_MANIFEST: &str = "\
name = \"stumbles\"
ptx = [\"stumbles.ptx\"]
[buffers]
x = { kind = \"input\", dtype = \"f32\", shape = [1] }
out = { kind = \"output\", dtype = \"f32\", shape = [1] }
[[step]]
kernel = \"stumbles\"
grid = [4]
block = [32]
args = [\"x\", \"out\"]
";

/// Calls it until a real-time invocation was retried because a co-scheduled block faulted.
fn stumble_beside(best_effort: &Caller) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    for seed in (0..3).cycle() {
        if best_effort.handle.statistics().retries > 0 {
            break;
        }
        ensure!(
            Instant::now() < end,
            "no block faulted beside a real-time launch: {:?}",
            best_effort.handle.statistics()
        );
        match best_effort.call(seed) {
            Ok(_) => ensure!(seed != 2, "it does not trap"),
            Err(error) => {
                let said = format!("{error:#}");
                let is_own =
                    said.contains("kernel 'stumbles' faulted in block (2,0,0)") && said.contains("node 'stumbles");
                ensure!(seed == 2 && is_own, "seed {seed}: {said}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_co_scheduled_block_that_faults_fails_its_own_function_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("stumbles.ptx"), STUMBLES)?;
    let mut bed = Bed::functions(Target::this_host(), ROUNDS, folder.path(), host_engine)?;
    bed.bundles[1] = packed(STUMBLES_MANIFEST, folder.path(), bed.target)?;
    let [rt, be] = &bed.bundles;
    let expected = bed.undisturbed(rt)?;
    let service = Service { target: bed.target, slow: rt.graph().name.clone() };
    let engine = (bed.engine)(EngineConfig {
        policy: "reef".into(),
        padding: Some(Arc::new(service)),
        ..EngineConfig::default()
    })?;
    let (urgent, best_effort) =
        (Caller::load(&engine, rt, Class::RealTime)?, Caller::load(&engine, be, Class::BestEffort)?);
    until(&best_effort.handle, "a module of both", |s| s.padding_candidates > 3 && !s.padding_pending)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let flow = scope.spawn(|| {
            (0..).take_while(|_| !over.load(Ordering::Relaxed)).try_for_each(|seed| urgent.expect(seed, &expected))
        });
        let stumbled = stumble_beside(&best_effort);
        over.store(true, Ordering::Relaxed);
        flow.join().ok().context("the thread panicked")?.and(stumbled)
    })?;
    ensure!(best_effort.handle.statistics().padded_launches > 0, "they shared launches");
    engine.shutdown();
    Ok(())
}

#[test]
fn a_daemon_compiles_padding_modules_for_profiled_models() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (repository, cache) = (folder.path().join("models"), folder.path().join("cache"));
    [&repository, &cache].into_iter().try_for_each(std::fs::create_dir)?;
    let bundle = compile(&built_small("squeezenet", folder.path())?, &repository)?;
    let mut profile = Command::new(atoll());
    profile
        .args(["profile", "--runs", "2", "--compute-units", "2", "--json"])
        .arg(bundle.path())
        .env("XDG_CACHE_HOME", &cache);
    ensure!(profile.output()?.status.success(), "the model is profiled");
    let daemon = Daemon::start_with(&repository, &cache, &["--policy", "reef", "--compute-units", "2"])?;
    let end = Instant::now() + Duration::from_secs(240);
    loop {
        let (_, metrics) = ask(&daemon.metrics, "GET", "/metrics", "")?;
        let candidates = metrics
            .lines()
            .find_map(|line| line.strip_prefix(r#"atoll_padding_candidates{device="host:0"} "#))
            .context("the metric")?;
        if candidates.parse::<f64>()? > 0.0 {
            break;
        }
        ensure!(Instant::now() < end, "timed out waiting for the module:\n{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = Command::new(atoll())
        .args(["infer", "--model", "squeezenet", "--priority", "1", "--url", &daemon.http])
        .output()?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    Ok(())
}
