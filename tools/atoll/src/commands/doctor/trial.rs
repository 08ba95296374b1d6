//! Trial runs: compiles and runs a model, and evicts best-effort work.

use super::Finding;
use super::interrupt::Interruption;
use crate::compiler::compile_for;
use crate::device_name::DeviceName;
use crate::engine::EngineArgs;
use anyhow::{Context, Result};
use atoll_bench::commands::Workload;
use atoll_engine::{Class, EngineStatistics};
use atoll_kgraph::Bundle;
use atoll_kgraph::ModelOptions;
use atoll_models::{BuildOptions, build_onnx};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Duration of the preemption trial.
const TRIAL: Duration = Duration::from_secs(2);
/// Interval of real-time requests: long enough for best-effort work to refill the device queue.
const PERIOD: Duration = Duration::from_millis(20);

pub(super) fn all(engine: &EngineArgs) -> Vec<Finding> {
    let remedy = "run with --log debug for details; install what the message names, or report this";
    let models = match compile() {
        Ok(models) => models,
        Err(error) => return vec![Finding::bad("compile", format!("failed: {error:#}"), remedy)],
    };
    let compiled = Finding::good(
        "compile",
        format!("a model with {} nodes in {:.1} s", models.be.graph().nodes.len(), models.seconds),
    );
    match preempt(&models, engine) {
        Ok(statistics) => {
            let preemption =
                super::interrupt::probe(engine, &models.rt).map(|interruption| effect(&statistics, &interruption));
            let preemption =
                preemption.unwrap_or_else(|error| Finding::bad("preemption", format!("failed: {error:#}"), remedy));
            vec![compiled, preemption, super::cancel::finding(engine)]
        }
        Err(error) => vec![compiled, Finding::bad("run", format!("failed: {error:#}"), remedy)],
    }
}

struct Models {
    rt: Arc<Bundle>,
    be: Arc<Bundle>,
    seconds: f64,
}

fn compile() -> Result<Models> {
    let folder = tempfile::tempdir()?;
    let rt = bundle(folder.path(), "null", &BuildOptions::default())?;
    let start = Instant::now();
    // Compiles quickly, and has many launches to evict.
    let be =
        bundle(folder.path(), "squeezenet", &BuildOptions { width: 0.5, image: Some(112), ..BuildOptions::default() })?;
    Ok(Models { rt, be, seconds: start.elapsed().as_secs_f64() })
}

/// Builds, compiles and opens a model. The bundle stays mapped after its file is deleted.
fn bundle(folder: &Path, name: &str, options: &BuildOptions) -> Result<Arc<Bundle>> {
    let model = folder.join(name).with_extension("onnx");
    std::fs::write(&model, build_onnx(name, options).context("building the model")?)?;
    let bundle = model.with_extension("kg");
    compile_for(DeviceName::Host, &model, &ModelOptions::default(), &bundle)?;
    Ok(Bundle::open(&bundle)?)
}

fn preempt(models: &Models, engine: &EngineArgs) -> Result<EngineStatistics> {
    let engine = engine.start()?;
    let handle = engine.handle();
    let rt = Workload::load(&handle, "rt", &models.rt, Class::RealTime, 0)?;
    let be = Workload::load(&handle, "be", &models.be, Class::BestEffort, 0)?;
    rt.ask()?;
    be.ask()?;
    let background = be.closed_loop(2);
    let end = Instant::now() + TRIAL;
    while Instant::now() < end {
        std::thread::sleep(PERIOD);
        rt.ask()?;
    }
    background.stop();
    let statistics = handle.statistics();
    engine.shutdown();
    Ok(statistics)
}

/// Reports the preemption level that the measurements prove.
fn effect(statistics: &EngineStatistics, interruption: &Interruption) -> Finding {
    let latency = &statistics.preemption_latency;
    let us = |q: f64| latency.quantile_ns(q) as f64 / 1e3;
    let measured = format!(
        "time from submission to the first real-time block: p50 {:.0} µs, p99 {:.0} µs, {} samples",
        us(0.5),
        us(0.99),
        latency.count()
    );
    let evicted = statistics.evicted_launches;
    if evicted > 0 && interruption.ran_beside == interruption.tries && interruption.reexecuted_blocks > 0 {
        return Finding::good(
            "preemption",
            format!(
                "level Interrupt: {evicted} queued launches were evicted; {} of {} real-time requests ran while an \
                endless kernel held all compute units, and {} of its blocks were interrupted; {measured}",
                interruption.ran_beside, interruption.tries, interruption.reexecuted_blocks
            ),
        );
    }
    if evicted > 0 {
        return Finding::good(
            "preemption",
            format!(
                "level Deactivate: {evicted} queued launches were evicted and run again, but running blocks are not \
                interrupted; {measured}"
            ),
        );
    }
    Finding::absent(
        "preemption",
        format!("level Block: no queued launch was evicted in {} preemptions; {measured}", statistics.preemptions),
        "with --policy reset, launches should be evicted; try again on an idle machine, or report this",
    )
}
