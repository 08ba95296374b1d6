//! The compiler's API: a model artifact becomes a bundle.
//!
//! ```text
//! import → transform → schedule → plan → for each target { emit → analyse → passes → lower } → write
//! ```
//!
//! [`compile`] begins with a model, [`pack`] with kernels in PTX, which are there before the targets are, [`pad_bundles`] with bundles that are to share launches.
//!
//! Every stage is a function of another crate; this one calls them in order, times them, tells an [`Observer`] what happens and shows any intermediate form.
//! It is not a build system: the cache of compiled models belongs to whoever serves them. Code of single kernels is kept where [`CompileOptions`] say so.

mod error;
mod native;
mod observer;
mod pack;
mod padding;
mod targets;
mod transfers;

pub use error::CompileError;
pub use observer::{Form, Observer, Silent, Stage, StageTime};
pub use pack::{PackError, pack};
pub use padding::{PaddedKernels, pad_bundles};
pub use targets::{Target, UnknownTarget};

use atoll_codegen::{Emitted, Schedule};
use atoll_frontend::memory_plan;
use atoll_frontend::tensor_graph::TensorGraph;
use atoll_kgraph::{BundleContents, DiskCache, KernelFacts, KernelGraph, LaunchSpec, RerunFact, TargetContents, TargetImage, write_bundle};
pub use atoll_passes::TransformOptions;
use atoll_passes::{KernelReport, LoopDecision, Outlining, PassOptions, Virtualization};
use atoll_ptx::Module;
use observer::Clock;
use std::path::Path;
use std::sync::Arc;

/// What identifies this compiler in bundles and caches.
pub const PRODUCER: &str = concat!("atoll ", env!("CARGO_PKG_VERSION"));

/// How a model is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Targets of the bundle.
    pub targets: Vec<Target>,
    /// Put NVIDIA kernels through `ptxas`, where there is one: checks them, and records registers and spills. Takes seconds.
    pub assemble: bool,
    /// Which passes for preemption run. All of them, but to measure what they cost.
    pub passes: TransformOptions,
    /// Where native code of kernels is kept and looked for.
    pub kernel_cache: Option<Arc<DiskCache>>,
}

impl Default for CompileOptions {
    /// Native code for this machine where there is LLVM, and PTX for every NVIDIA GPU from Turing on.
    fn default() -> CompileOptions {
        CompileOptions { targets: Target::defaults(), assemble: false, passes: TransformOptions::default(), kernel_cache: None }
    }
}

/// What was compiled.
#[derive(Clone, Debug)]
pub struct CompileReport {
    /// Digest of the bundle.
    pub digest: String,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Distinct kernels of every target.
    pub kernels: Vec<(Target, usize)>,
    /// Kernels left without the preemption flag, with the reason.
    pub not_preemptible: Vec<String>,
    /// How long each stage took.
    pub times: Vec<StageTime>,
}

/// Compiles an ONNX file into a bundle.
pub fn compile(input: &Path, output: &Path, options: &CompileOptions, observer: &dyn Observer) -> Result<CompileReport, CompileError> {
    let mut clock = Clock::new(observer, 4 + 4 * options.targets.len());
    let graph = clock.stage(Stage::Import, || import(input))?;
    let graph = clock.stage(Stage::Transform, || transform(graph, observer))?;
    let (schedule, plan) = clock.stage(Stage::Schedule, || schedule(&graph))?;
    let weights = schedule.weights.iter().map(|w| (w.offset, &*w.bytes)).collect();
    let mut built = Built::new(&plan, weights);
    for &target in &options.targets {
        let kernels = emit(&schedule, target, &mut clock, observer)?;
        built.add(kernels, target, options, &mut clock, observer)?;
    }
    built.write(output, clock)
}

/// A bundle in the making.
struct Built<'a> {
    graph: &'a KernelGraph,
    weights: Vec<(u64, &'a [u8])>,
    targets: Vec<TargetContents>,
    report: CompileReport,
}

impl<'a> Built<'a> {
    fn new(graph: &'a KernelGraph, weights: Vec<(u64, &'a [u8])>) -> Built<'a> {
        let report = CompileReport {
            digest: String::new(),
            nodes: graph.nodes.len(),
            kernels: Vec::new(),
            not_preemptible: Vec::new(),
            times: Vec::new(),
        };
        Built { graph, weights, targets: Vec::new(), report }
    }

    /// Adds the code of a target.
    fn add(
        &mut self,
        kernels: Kernels,
        target: Target,
        options: &CompileOptions,
        clock: &mut Clock<'_>,
        observer: &dyn Observer,
    ) -> Result<(), CompileError> {
        let (contents, reports) = compile_target(kernels, target, options, clock, observer)?;
        self.report.kernels.push((target, contents.image.kernels.len()));
        self.report.not_preemptible.extend(reports.iter().filter_map(|kernel| not_preemptible(target, kernel)));
        self.targets.push(contents);
        Ok(())
    }

    fn write(mut self, output: &Path, mut clock: Clock<'_>) -> Result<CompileReport, CompileError> {
        let contents = BundleContents { producer: PRODUCER.into(), graph: self.graph, weights: self.weights, targets: self.targets };
        self.report.digest = clock.stage(Stage::Write, || write_bundle(output, &contents).map_err(CompileError::from))?;
        self.report.times = clock.finish();
        Ok(self.report)
    }
}

/// Shows one intermediate form of a model without writing a bundle.
pub fn show(input: &Path, form: Form, target: Target) -> Result<String, CompileError> {
    let keep = observer::Keep::new(form);
    let mut clock = Clock::new(&keep, 6);
    let graph = transform(import(input)?, &keep)?;
    if form == Form::Graph {
        return Ok(graph.to_string());
    }
    let (schedule, _) = schedule(&graph)?;
    let kernels = emit(&schedule, target, &mut clock, &keep)?;
    compile_target(kernels, target, &CompileOptions::default(), &mut clock, &keep)?;
    keep.take().ok_or(CompileError::NoSuchForm { form, target })
}

fn import(input: &Path) -> Result<TensorGraph, CompileError> {
    Ok(atoll_frontend::onnx::import(input, &atoll_frontend::onnx::ImportOptions::default())?)
}

fn transform(graph: TensorGraph, observer: &dyn Observer) -> Result<TensorGraph, CompileError> {
    Ok(atoll_frontend::transform::transform_with(graph, |pass, graph| observer.form(Form::Graph, pass, &|| graph.to_string()))?)
}

/// The schedule, and its graph with the memory planned.
fn schedule(graph: &TensorGraph) -> Result<(Schedule, KernelGraph), CompileError> {
    let schedule = atoll_codegen::schedule(graph)?;
    let mut planned = schedule.graph.clone();
    memory_plan::plan(&mut planned);
    Ok((schedule, planned))
}

/// Kernels as they are before the passes, and how they are launched.
#[derive(Clone)]
struct Kernels {
    module: Module,
    /// Every kernel of the module, in its order.
    kernels: Vec<LaunchedKernel>,
    /// One entry per graph node.
    launches: Vec<Option<LaunchSpec>>,
}

/// A kernel, and the shape it is launched with.
#[derive(Clone)]
struct LaunchedKernel {
    name: String,
    block: [u32; 3],
    /// Beside what the kernel declares itself.
    dynamic_shared_bytes: u32,
}

/// The kernels of a model for a target.
fn emit(schedule: &Schedule, target: Target, clock: &mut Clock<'_>, observer: &dyn Observer) -> Result<Kernels, CompileError> {
    let Emitted { module, kernels, launches } =
        clock.stage(Stage::Emit(target), || Ok(atoll_codegen::emit(schedule, &target.description())?))?;
    let kernels = kernels.into_iter().map(|k| LaunchedKernel { name: k.name, block: k.block, dynamic_shared_bytes: 0 }).collect();
    let mut kernels = Kernels { module, kernels, launches };
    transfers::add(&schedule.graph, &mut kernels)?;
    observer.form(Form::Ptx, "emit", &|| atoll_ptx::print(&kernels.module));
    Ok(kernels)
}

fn compile_target(
    kernels: Kernels,
    target: Target,
    options: &CompileOptions,
    clock: &mut Clock<'_>,
    observer: &dyn Observer,
) -> Result<(TargetContents, Vec<KernelReport>), CompileError> {
    let Kernels { mut module, kernels, launches } = kernels;
    let (source, located) = atoll_ptx::print_located(&module);
    let reruns = clock.stage(Stage::Analyse(target), || Ok(reruns(&located)))?;
    // Only an assembler asks for it.
    let plain = (options.assemble && matches!(target, Target::Nvidia(_))).then(|| module.clone());
    let (report, not_padded) = clock.stage(Stage::Passes(target), || {
        // LLVM reduces divisions itself, and the host target's own analyses know better what becomes of them.
        let reduce_divisions = options.passes.reduce_divisions && matches!(target, Target::Nvidia(_));
        let passes = TransformOptions { reduce_divisions, ..options.passes };
        let report = atoll_passes::transform(&mut module, &passes, &mut |_, _| {})?;
        let not_padded = not_padded(&module, &kernels)?;
        Ok((report, not_padded))
    })?;
    observer.form(Form::PtxFinal, "passes", &|| atoll_ptx::print(&module));
    let mut facts: Vec<KernelFacts> =
        kernels.iter().zip(&report.kernels).zip(reruns).map(|((kernel, report), rerun)| facts(kernel, report, rerun)).collect();
    for (facts, reason) in facts.iter_mut().zip(not_padded) {
        facts.not_padded = reason;
    }
    let (code, ptx) = clock.stage(Stage::Lower(target), || {
        targets::lower(target, &module, plain.as_ref().filter(|plain| **plain != module), &mut facts, options, observer)
    })?;
    let image = TargetImage { name: target.name().into(), kernels: facts, launches, ..TargetImage::default() };
    Ok((TargetContents { image, code, ptx, source: Some(source) }, report.kernels))
}

/// Which kernels may be run again. What is proven is about kernels as they were written, since the passes add accesses of their own; reasons name lines of
/// [`Form::Ptx`].
fn reruns(module: &Module) -> Vec<RerunFact> {
    module.kernels().map(|kernel| atoll_passes::analyze_idempotence(module, kernel).fact()).collect()
}

/// Why kernels cannot share a launch with others, found by preparing a copy for it.
fn not_padded(module: &Module, kernels: &[LaunchedKernel]) -> Result<Vec<Option<String>>, CompileError> {
    let mut module = module.clone();
    let blocks = kernels.iter().map(|kernel| (kernel.name.as_str().into(), kernel.block)).collect();
    let options = PassOptions { blocks, ..PassOptions::default() };
    let report = atoll_passes::transform_with(&mut module, &["virtualize_block_index", "outline_kernel_body"], &options, &mut |_, _| {})?;
    let reason = |kernel: &KernelReport| match (&kernel.virtualization, &kernel.outlining) {
        (Virtualization::Refused(reason), _) => Some(reason.to_string()),
        (_, Outlining::Refused(reason)) => Some(reason.to_string()),
        _ => None,
    };
    Ok(report.kernels.iter().map(reason).collect())
}

fn facts(kernel: &LaunchedKernel, report: &KernelReport, rerun: RerunFact) -> KernelFacts {
    KernelFacts {
        name: kernel.name.clone(),
        block: kernel.block,
        params_bytes: report.params_bytes,
        preempt_offset: report.preempt_offset(),
        shared_bytes: report.shared_bytes.saturating_add(kernel.dynamic_shared_bytes),
        rerun: Some(rerun),
        loop_checks: report.loops.iter().filter(|l| matches!(l.decision, LoopDecision::Checked { .. })).count() as u32,
        ..KernelFacts::default()
    }
}

fn not_preemptible(target: Target, kernel: &KernelReport) -> Option<String> {
    match &kernel.preemption {
        atoll_passes::Preemption::NotCut(reason) => Some(format!("{}: {}: {reason}", target.name(), kernel.name)),
        _ => None,
    }
}
