//! The compiler's API: a model artifact becomes a bundle.
//!
//! ```text
//! import → transform → schedule → plan → for each target { emit → analyse → passes → lower } → write
//! ```
//!
//! [`compile`] starts from a model, [`pack`] from kernels in PTX, [`recompile`] from the sources in a
//! bundle, and [`pad_bundles`] from bundles whose kernels are to share launches.
//!
//! Every stage is a function of another crate. This crate calls the stages in order, measures their
//! durations, reports progress to an [`Observer`], and can show any intermediate form.
//!
//! Not here: the cache of compiled models, which belongs to the daemon. Code of single kernels is
//! cached if [`CompileOptions::kernel_cache`] is set.
//!
//! Invariants: all targets of a bundle share one kernel graph and one memory plan. A kernel is
//! analysed before the passes change it. Native code is stored with the PTX that it was compiled
//! from.
//!
//! Start reading at [`compile`]; `code.rs` is the part that all inputs share.

mod builder;
mod code;
mod error;
mod kernels;
mod native;
mod observer;
mod options;
mod pack;
mod padding;
mod recompile;
mod stage;
mod targets;
mod transfers;

pub use builder::{CompileReport, PRODUCER};
pub use error::CompileError;
pub use native::compile_amd;
pub use observer::{Observer, Silent};
pub use options::{CompileOptions, Fences, TransformOptions};
pub use pack::launch::{
    LaunchShape, LaunchSource, ModuleContents, ModuleKernel, ModuleVariable, launch_source, pack_launch, read_module,
};
pub use pack::{PackError, pack};
pub use padding::{PaddedKernels, pad_bundles};
pub use recompile::{RecompileError, recompile};
pub use stage::{Form, Stage, StageTime};
pub use targets::{AmdArchitecture, Target, UnknownTarget};

use atoll_codegen::{Emitted, Schedule};
use atoll_frontend::memory_plan;
use atoll_frontend::onnx::{self, ImportOptions};
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_kgraph::KernelGraph;
use builder::BundleBuilder;
use code::compile_target;
use kernels::{Kernels, LaunchedKernel};
use observer::Clock;
use std::path::Path;

/// Compiles an ONNX file into a bundle.
pub fn compile(
    input: &Path,
    output: &Path,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<CompileReport, CompileError> {
    let mut clock = Clock::new(observer, 4 + 4 * options.targets.len());
    let graph = clock.stage(Stage::Import, || import(input, options))?;
    let graph = clock.stage(Stage::Transform, || transform(graph, observer))?;
    let (schedule, plan) = clock.stage(Stage::Schedule, || schedule(&graph))?;
    let weights = schedule.weights.iter().map(|w| (w.offset, &*w.bytes)).collect();
    let mut bundle = BundleBuilder::new(&plan, weights);
    for &target in &options.targets {
        let kernels = emit(&schedule, target, &mut clock, observer)?;
        bundle.add(kernels, target, options, &mut clock, observer)?;
    }
    bundle.write(output, clock)
}

/// Returns one intermediate form of a model, without writing a bundle.
pub fn show(input: &Path, form: Form, target: Target, options: &CompileOptions) -> Result<String, CompileError> {
    let recorder = observer::FormRecorder::new(form);
    let mut clock = Clock::new(&recorder, 6);
    let graph = transform(import(input, options)?, &recorder)?;
    if form == Form::Graph {
        return Ok(graph.to_string());
    }
    let (schedule, _) = schedule(&graph)?;
    let kernels = emit(&schedule, target, &mut clock, &recorder)?;
    compile_target(kernels, target, options, &mut clock, &recorder)?;
    recorder.take().ok_or(CompileError::NoSuchForm { form, target })
}

/// Why the rows of a model are not independent, for each size that could count them; `None` if they
/// are.
///
/// # Errors
/// The model cannot be imported.
pub fn why_not_batched(input: &Path, options: &CompileOptions) -> Result<Option<String>, CompileError> {
    let graph = transform(import(input, options)?, &Silent)?;
    if !graph.states.is_empty() {
        return Ok(Some("it keeps state between invocations".into()));
    }
    let Err(reasons) = atoll_frontend::batch::analyse(&graph) else { return Ok(None) };
    let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    Ok(Some(if reasons.is_empty() { "all its sizes are fixed".into() } else { reasons.join("; ") }))
}

fn import(input: &Path, options: &CompileOptions) -> Result<TensorGraph, CompileError> {
    let (symbols, common) = (options.symbols.clone(), options.common_symbols.clone());
    Ok(onnx::import(
        input,
        &ImportOptions { symbols, common, states: options.states.clone(), ..ImportOptions::default() },
    )?)
}

fn transform(graph: TensorGraph, observer: &dyn Observer) -> Result<TensorGraph, CompileError> {
    Ok(atoll_frontend::transform::transform_with(graph, |pass, graph| {
        observer.form(Form::Graph, pass, &|| graph.to_string())
    })?)
}

/// The schedule, and its kernel graph with a memory plan.
fn schedule(graph: &TensorGraph) -> Result<(Schedule, KernelGraph), CompileError> {
    let schedule = atoll_codegen::schedule(graph)?;
    let mut planned = schedule.graph.clone();
    memory_plan::plan(&mut planned);
    Ok((schedule, planned))
}

/// Emits the kernels of a model for a target.
fn emit(
    schedule: &Schedule,
    target: Target,
    clock: &mut Clock<'_>,
    observer: &dyn Observer,
) -> Result<Kernels, CompileError> {
    let Emitted { module, kernels, launches } =
        clock.stage(Stage::Emit(target), || Ok(atoll_codegen::emit(schedule, &target.description())?))?;
    let kernels =
        kernels.into_iter().map(|k| LaunchedKernel { name: k.name, block: k.block, dynamic_shared_bytes: 0 }).collect();
    let mut kernels = Kernels { module, kernels, launches };
    transfers::add(&schedule.graph, &mut kernels)?;
    observer.form(Form::Ptx, "emit", &|| atoll_ptx::print(&kernels.module));
    Ok(kernels)
}
