//! Branches of a model run beside each other, and every answer stays what it was in line: on the
//! host device, in an executor and on a GPU, also when they are evicted and beside real-time work.

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

/// Invocations after which the engine has decided, and then some.
const RUNS: usize = 8;

/// Branches run beside each other wherever that leaves less of the device idle.
fn beside() -> EngineConfig {
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

/// Runs a case until the engine has decided, and a few times more. Returns how many parts ran in
/// two lines.
fn run(loaded: &Loaded, case: &Case, expected: &InvocationResult) -> Result<u64> {
    for index in 0..RUNS {
        let result = loaded.run(case)?;
        ensure!(bytes(&result) == bytes(expected), "invocation {index} gave another answer");
        // Those that left are issued again.
        ensure!(result.launches.len() >= expected.launches.len(), "invocation {index} left launches out");
    }
    Ok(loaded.handle.statistics().forks)
}

/// The answer of an engine in which everything runs in line.
fn in_line(
    bundle: &Arc<Bundle>,
    case: &Case,
    start: impl Fn(EngineConfig) -> Result<Engine>,
) -> Result<InvocationResult> {
    let loaded = Loaded::start_in(start(EngineConfig { branch_gain_min: None, ..EngineConfig::default() })?, bundle)?;
    let result = loaded.run(case)?;
    ensure!(run(&loaded, case, &result)? == 0, "what was to run in line did not");
    loaded.stop();
    Ok(result)
}

/// The same answers beside each other and in line, undisturbed and evicted at random.
fn answers_stay(name: &str, target: Target, start: impl Fn(EngineConfig) -> Result<Engine>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bundle, case) = model(name, folder.path(), target)?;
    let expected = in_line(&bundle, &case, &start)?;
    let loaded = Loaded::start_in(start(beside())?, &bundle)?;
    ensure!(run(&loaded, &case, &expected)? > 0, "{name} has no branches that run beside each other");
    loaded.stop();
    let loaded = Loaded::start_in(start(EngineConfig { evict_at_random: Some(5), ..beside() })?, &bundle)?;
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
fn branches_beside_each_other_answer_as_in_line() -> Result<()> {
    answers_stay("squeezenet", Target::this_host(), on_the_host)?;
    answers_stay("inception_v3", Target::this_host(), on_the_host)
}

#[test]
fn branches_beside_each_other_answer_as_in_line_in_an_executor() -> Result<()> {
    answers_stay("squeezenet", Target::this_host(), |config| {
        let executor = ExecutorConfig { program: atoll(), ..ExecutorConfig::new(host())? };
        Ok(Engine::start(Box::new(ExecutorPool::new(executor)?), config)?)
    })
}

#[test]
fn branches_beside_each_other_answer_as_in_line_on_a_gpu() -> Result<()> {
    answers_stay("squeezenet", Target::NVIDIA, cuda::engine)?;
    answers_stay("squeezenet", Target::NVIDIA, cuda::engine_behind_executor)
}

#[test]
fn branches_make_way_for_real_time_work_and_go_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bundle, case) = model("inception_v3", folder.path(), Target::this_host())?;
    let expected = in_line(&bundle, &case, on_the_host)?;
    let best_effort = Loaded::start_in(on_the_host(beside())?, &bundle)?;
    let options =
        |name: &str, class, lane| FunctionOptions { key: FunctionKey::local(name), class, queue_capacity: None, lane };
    let real_time = best_effort.beside(&bundle, options("urgent", Class::RealTime, Default::default()))?;
    // In a lane of two compute units branches run beside each other too.
    let lane = best_effort.handle.open_lane(LaneSpec { units: vec![0, 1], queues: 2 })?;
    let in_lane = best_effort.beside(&bundle, options("apart", Class::BestEffort, lane.id))?;
    let evicted = std::thread::scope(|scope| -> Result<u32> {
        let others = [&best_effort, &in_lane].map(|loaded| {
            scope.spawn(|| -> Result<u32> {
                let mut preemptions = 0;
                for _ in 0..6 * RUNS {
                    let result = loaded.run(&case)?;
                    ensure!(bytes(&result) == bytes(&expected), "best-effort work gave another answer");
                    preemptions += result.preemptions;
                }
                Ok(preemptions)
            })
        });
        while !others.iter().all(|thread| thread.is_finished()) {
            ensure!(bytes(&real_time.run(&case)?) == bytes(&expected), "real-time work gave another answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        others.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })?;
    ensure!(evicted > 0, "nobody was in anybody's way");
    ensure!(best_effort.handle.statistics().forks > 0, "no branches ran beside each other");
    in_lane.stop();
    best_effort.handle.close_lane(lane.id)?;
    real_time.stop();
    best_effort.stop();
    Ok(())
}
