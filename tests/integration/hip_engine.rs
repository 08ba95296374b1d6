//! The engine on an AMD GPU: it runs on the stand-in for the HIP runtime, which interprets code
//! objects.

use super::gpu_engine::Gpu;
use super::padding::{Bed, kill_executors};
use super::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_core::PreemptLevel;
use atoll_device::{Device, Domains};
use atoll_device_hip::{HipConfig, start};
use atoll_engine::{Engine, EngineConfig, EngineStatistics};
use atoll_executor::{ExecutorConfig, ExecutorPool};
use atoll_models::BuildOptions;
use atoll_pipeline::Target;
use atoll_tests::{Model, full, sample, stand_in};
use std::path::Path;
use std::time::Duration;

/// Rounds of the loops in the functions that pad each other: few, since each instruction of a wave
/// takes microseconds.
pub(crate) const ROUNDS: u32 = 100;

fn config() -> Result<HipConfig> {
    Ok(HipConfig { library: Some(stand_in::hip_library()?), memory_bytes: Some(64 << 20), ..HipConfig::default() })
}

pub(crate) fn engine(config_of_engine: EngineConfig) -> Result<Engine> {
    Ok(Engine::start(Box::new(start(&config()?)?), config_of_engine)?)
}

/// Like [`engine`], with the GPU in an executor.
fn engine_behind_executor(config_of_engine: EngineConfig) -> Result<Engine> {
    let executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(config()?)? };
    Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config_of_engine)?)
}

/// The same, with a kernel driver that has Atoll's patch: running waves are killed, and best-effort
/// work has a second executor.
fn engine_that_kills_waves(config_of_engine: EngineConfig) -> Result<Engine> {
    let hip = HipConfig { resets_waves: true, ..config()? };
    let mut executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(hip)? };
    executor.environment.push((stand_in::HIP_OPTIONS.into(), "kfd".into()));
    let pool = ExecutorPool::new(executor)?;
    ensure!(pool.info().preempt_level == PreemptLevel::Interrupt, "{:?}", pool.info());
    ensure!(pool.executors().alive == 2, "real-time and best-effort work have a process each");
    Ok(Engine::start(Box::new(pool), config_of_engine)?)
}

/// The stand-in has the architecture gfx90a by default.
pub(crate) fn target() -> Result<Target> {
    Ok("amd:gfx90a".parse()?)
}

/// The architectures that models run for.
const ARCHITECTURES: [&str; 3] = ["gfx906", "gfx90a", "gfx1100"];

/// Longest time of a launch of a model.
const LAUNCH_LIMIT: Duration = Duration::from_secs(600);

/// An engine with a GPU of this architecture, in an executor: its environment has the option.
fn engine_for(architecture: &str, config_of_engine: EngineConfig) -> Result<Engine> {
    let hip = HipConfig { time_limit: LAUNCH_LIMIT, ..config()? };
    let mut executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(hip)? };
    executor.environment.push((stand_in::HIP_OPTIONS.into(), format!("arch={architecture}").into()));
    Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config_of_engine)?)
}

/// A variant of a model that is small enough for an interpreter.
fn small(name: &str, image: u32, folder: &Path) -> Result<Model> {
    let path = folder.join(format!("{name}.onnx"));
    let options = BuildOptions { seed: 7, width: 0.25, image: Some(image), ..BuildOptions::default() };
    std::fs::write(&path, atoll_models::build_onnx(name, &options)?)?;
    Ok(Model { name: name.into(), path, symbols: Vec::new() })
}

fn model(folder: &Path) -> Result<Model> {
    small("squeezenet", 40, folder)
}

fn gpu() -> Result<Gpu> {
    Ok(Gpu { target: target()?, model, urgent: model, pause: Duration::from_millis(500) })
}

/// SqueezeNet for one architecture, drawn by `ATOLL_SEED`; in a full run three models for each.
#[test]
fn models_agree_with_the_oracle_also_when_they_are_evicted() -> Result<()> {
    const MODELS: [fn(&Path) -> Result<Model>; 3] =
        [model, |folder| small("resnet18", 32, folder), |folder| small("distilbert", 5, folder)];
    let models = if full() { &MODELS[..] } else { &MODELS[..1] };
    let cases = models.iter().flat_map(|model| ARCHITECTURES.map(|architecture| (*model, architecture)));
    for (model, architecture) in sample("hip-models", cases.collect(), 1, |_| ()) {
        let gpu = Gpu { target: format!("amd:{architecture}").parse()?, model, ..gpu()? };
        gpu.models_agree_also_when_evicted(|config| engine_for(architecture, config))
            .with_context(|| architecture.to_owned())?;
    }
    Ok(())
}

#[test]
fn best_effort_work_is_preempted_and_results_are_correct() -> Result<()> {
    gpu()?.best_effort_work_makes_way(engine)
}

#[test]
fn best_effort_work_is_preempted_in_an_executor() -> Result<()> {
    gpu()?.best_effort_work_makes_way(engine_behind_executor)
}

/// Blocks of best-effort kernels are killed and run again; real-time kernels run in another
/// process.
#[test]
fn running_best_effort_kernels_are_killed_and_results_are_correct() -> Result<()> {
    let has_killed = |so_far: &EngineStatistics| so_far.interrupt_latency.count() > 0;
    let after = gpu()?.makes_way(engine_that_kills_waves, Some(has_killed))?;
    ensure!(after.interrupt_latency.count() > 0 && after.reexecuted_blocks > 0, "nothing was killed: {after:?}");
    Ok(())
}

/// A lane is a stream with a mask of compute units.
#[test]
fn a_busy_lane_that_is_closed_goes_on_in_the_default_lane() -> Result<()> {
    gpu()?.a_busy_lane_is_closed(engine)
}

/// Launches run in proxy kernels, which jump to the kernels of both functions.
#[test]
fn padded_kernels_give_the_same_results() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Bed::functions(target()?, ROUNDS, folder.path(), engine)?.shares_launches().map(drop)
}

#[test]
fn all_invocations_of_a_padded_launch_are_retried_when_their_gpu_is_lost() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bed = Bed::functions(target()?, ROUNDS, folder.path(), engine_behind_executor)?;
    let [_, after] = bed.run(2, kill_executors)?;
    ensure!(after.retries > 0, "{after:?}");
    Ok(())
}
