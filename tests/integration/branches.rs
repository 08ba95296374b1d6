//! Branches of a model run in parallel, and the results are the same as in sequence: on the host
//! device, in an executor and on a GPU, also with evictions and beside real-time work.

use crate::cuda;
use crate::serve::atoll;
use anyhow::{Context, Result, ensure};
use atoll_device_host::HostConfig;
use atoll_engine::{Class, Engine, EngineConfig, FunctionKey, FunctionOptions, InvocationResult, LaneSpec};
use atoll_executor::{ExecutorConfig, ExecutorPool};
use atoll_kgraph::Bundle;
use atoll_pipeline::Target;
use atoll_tests::{Case, Loaded, built_small, compile_for, oracle};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Number of invocations: enough for the engine to decide, and a few more.
const RUNS: usize = 8;

/// Runs branches in parallel wherever that leaves less of the device idle.
fn parallel() -> EngineConfig {
    EngineConfig { branch_gain_min: Some(Duration::ZERO), ..EngineConfig::default() }
}

/// A model with branches, small enough that its launches leave compute units idle.
fn model(name: &str, folder: &Path, target: Target) -> Result<(Arc<Bundle>, Case)> {
    let model = built_small(name, folder)?;
    let bundle = compile_for(&model, folder, target)?;
    let case = oracle(&model, &[3], folder)?.into_iter().next().context("a case")?;
    Ok((bundle, case))
}

fn bytes(result: &InvocationResult) -> Vec<&[u8]> {
    result.outputs.iter().map(|output| &output.bytes[..]).collect()
}

/// Runs a case until the engine has decided, and a few times more. Returns the number of parts that
/// ran in parallel.
fn run(loaded: &Loaded, case: &Case, expected: &InvocationResult) -> Result<u64> {
    for index in 0..RUNS {
        let result = loaded.run(case)?;
        ensure!(bytes(&result) == bytes(expected), "invocation {index} gave a different result");
        // Evicted launches are issued again.
        ensure!(result.launches.len() >= expected.launches.len(), "invocation {index} left launches out");
    }
    Ok(loaded.handle.statistics().forks)
}

/// The result of an engine that runs everything in sequence.
fn in_line(
    bundle: &Arc<Bundle>,
    case: &Case,
    start: impl Fn(EngineConfig) -> Result<Engine>,
) -> Result<InvocationResult> {
    let loaded = Loaded::start_in(start(EngineConfig { branch_gain_min: None, ..EngineConfig::default() })?, bundle)?;
    let result = loaded.run(case)?;
    ensure!(run(&loaded, case, &result)? == 0, "branches ran in parallel although they should not");
    loaded.stop();
    Ok(result)
}

/// Compares results in parallel and in sequence, undisturbed and with random evictions.
fn answers_stay(name: &str, target: Target, start: impl Fn(EngineConfig) -> Result<Engine>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bundle, case) = model(name, folder.path(), target)?;
    let expected = in_line(&bundle, &case, &start)?;
    let loaded = Loaded::start_in(start(parallel())?, &bundle)?;
    ensure!(run(&loaded, &case, &expected)? > 0, "{name} has no branches that run in parallel");
    loaded.stop();
    let loaded = Loaded::start_in(start(EngineConfig { evict_at_random: Some(5), ..parallel() })?, &bundle)?;
    run(&loaded, &case, &expected)?;
    loaded.stop();
    Ok(())
}

fn host() -> HostConfig {
    HostConfig { compute_units: 4, cpus: Vec::new(), ..HostConfig::default() }
}

fn on_the_host(config: EngineConfig) -> Result<Engine> {
    Ok(Engine::start(Box::new(atoll_device_host::HostDevice::start(host())?), config)?)
}

#[test]
fn parallel_branches_give_the_same_results() -> Result<()> {
    answers_stay("squeezenet", Target::this_host(), on_the_host)?;
    answers_stay("inception_v3", Target::this_host(), on_the_host)
}

#[test]
fn parallel_branches_give_the_same_results_in_an_executor() -> Result<()> {
    answers_stay("squeezenet", Target::this_host(), |config| {
        let executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(host())? };
        Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config)?)
    })
}

#[test]
fn parallel_branches_give_the_same_results_on_a_gpu() -> Result<()> {
    answers_stay("squeezenet", Target::NVIDIA, cuda::engine)?;
    answers_stay("squeezenet", Target::NVIDIA, cuda::engine_behind_executor)
}

#[test]
fn branches_are_evicted_for_real_time_work_and_resumed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bundle, case) = model("inception_v3", folder.path(), Target::this_host())?;
    let expected = in_line(&bundle, &case, on_the_host)?;
    let best_effort = Loaded::start_in(on_the_host(parallel())?, &bundle)?;
    let options = |name: &str, class, lane| FunctionOptions {
        key: FunctionKey::local(name),
        class,
        queue_capacity: None,
        lane,
        batching: None,
    };
    let real_time = best_effort.beside(&bundle, options("urgent", Class::RealTime, Default::default()))?;
    // Branches also run in parallel in a lane of two compute units.
    let lane = best_effort.handle.open_lane(LaneSpec { units: vec![0, 1], queues: 2 })?;
    let in_lane = best_effort.beside(&bundle, options("apart", Class::BestEffort, lane.id))?;
    let evicted = std::thread::scope(|scope| -> Result<u32> {
        let others = [&best_effort, &in_lane].map(|loaded| {
            scope.spawn(|| -> Result<u32> {
                let mut preemptions = 0;
                for _ in 0..6 * RUNS {
                    let result = loaded.run(&case)?;
                    ensure!(bytes(&result) == bytes(&expected), "best-effort work gave a different result");
                    preemptions += result.preemptions;
                }
                Ok(preemptions)
            })
        });
        while !others.iter().all(|thread| thread.is_finished()) {
            ensure!(bytes(&real_time.run(&case)?) == bytes(&expected), "real-time work gave a different result");
            std::thread::sleep(Duration::from_millis(5));
        }
        others.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })?;
    ensure!(evicted > 0, "nothing was evicted");
    ensure!(best_effort.handle.statistics().forks > 0, "no branches ran in parallel");
    in_lane.stop();
    best_effort.handle.close_lane(lane.id)?;
    real_time.stop();
    best_effort.stop();
    Ok(())
}
