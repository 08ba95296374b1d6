//! Compiles kernels for a target: analyses, passes, lowering.

use crate::error::CompileError;
use crate::kernels::{Kernels, LaunchedKernel};
use crate::native;
use crate::observer::{Clock, Observer};
use crate::options::CompileOptions;
use crate::stage::{Form, Stage};
use crate::targets::Target;
use atoll_kgraph::{FenceFacts, KernelFacts, RerunFact, TargetContents, TargetImage};
use atoll_passes::{
    FenceForm, Fencing, KernelReport, LoopDecision, NotFenced, Outlining, PassOptions, TransformOptions,
    TransformReport, Virtualization,
};
use atoll_ptx::Module;

/// Why a kernel that reports faults is not padded.
const OWN_FAULT_WORD: &str = "it reports faults of its launch, which it must not share";

/// Compiles kernels to the code of a target. Also returns the reports of the passes.
pub(crate) fn compile_target(
    kernels: Kernels,
    target: Target,
    options: &CompileOptions,
    clock: &mut Clock<'_>,
    observer: &dyn Observer,
) -> Result<(TargetContents, Vec<KernelReport>), CompileError> {
    let Kernels { mut module, kernels, launches } = kernels;
    let (source, located) = atoll_ptx::print_located(&module);
    let reruns = clock.stage(Stage::Analyse(target), || Ok(reruns(&located)))?;
    let form = options.fences.form(target);
    // Only `ptxas` needs the kernels without passes.
    let plain = (options.assemble && matches!(target, Target::Nvidia(_))).then(|| module.clone());
    let (report, not_padded) = clock.stage(Stage::Passes(target), || {
        // LLVM reduces divisions itself, and the analyses of the host target work better without
        // the reduction.
        let reduce_divisions = options.passes.reduce_divisions && matches!(target, Target::Nvidia(_));
        let passes = TransformOptions { reduce_divisions, ..options.passes };
        let report = transform(&mut module, passes, form)?;
        let not_padded = not_padded(&module, &kernels)?;
        Ok((report, not_padded))
    })?;
    observer.form(Form::PtxFinal, "passes", &|| atoll_ptx::print(&module));
    let mut facts: Vec<KernelFacts> = kernels
        .iter()
        .zip(&report.kernels)
        .zip(reruns)
        .map(|((kernel, report), rerun)| facts(kernel, report, rerun, form))
        .collect();
    for (facts, reason) in facts.iter_mut().zip(not_padded) {
        let shared_word = || OWN_FAULT_WORD.to_owned();
        facts.not_padded = reason.or(facts.fence.filter(|fence| fence.fault_word).map(|_| shared_word()));
    }
    let (code, ptx) = clock.stage(Stage::Lower(target), || {
        lower(target, &module, plain.as_ref().filter(|plain| **plain != module), &mut facts, options, observer)
    })?;
    let image = TargetImage { name: target.name().into(), kernels: facts, launches, ..TargetImage::default() };
    Ok((TargetContents { image, code, ptx, source: Some(source) }, report.kernels))
}

/// Runs the passes, and before them the fence if it is requested.
fn transform(
    module: &mut Module,
    passes: TransformOptions,
    fence: Option<FenceForm>,
) -> Result<TransformReport, CompileError> {
    let of_fence: &[&str] = match fence {
        None => &[],
        Some(FenceForm::Exit) => &["fence_memory", "exit_on_trap"],
        Some(_) => &["fence_memory"],
    };
    let names: Vec<&str> = of_fence.iter().copied().chain(passes.names()).collect();
    let options = PassOptions { fence_form: fence.unwrap_or_default(), ..PassOptions::default() };
    let report = atoll_passes::transform_with(module, &names, &options, &mut |_, _| {})?;
    match report.kernels.iter().find_map(refused) {
        Some((kernel, reason)) => Err(CompileError::NotFenced { kernel: kernel.into(), reason: reason.clone() }),
        None => Ok(report),
    }
}

fn refused(kernel: &KernelReport) -> Option<(&str, &NotFenced)> {
    match &kernel.fencing {
        Fencing::Refused(reason) => Some((&kernel.name, reason)),
        Fencing::NotAsked | Fencing::Fenced { .. } => None,
    }
}

/// Whether each kernel may be run again. The analysis looks at kernels before the passes, because
/// passes add memory accesses; its reasons refer to lines of [`Form::Ptx`].
fn reruns(module: &Module) -> Vec<RerunFact> {
    module.kernels().map(|kernel| atoll_passes::analyze_idempotence(module, kernel).fact()).collect()
}

/// Why each kernel cannot share a launch with others, found by preparing a copy of the module for
/// it.
fn not_padded(module: &Module, kernels: &[LaunchedKernel]) -> Result<Vec<Option<String>>, CompileError> {
    let mut module = module.clone();
    let blocks = kernels.iter().map(|kernel| (kernel.name.as_str().into(), kernel.block)).collect();
    let options = PassOptions { blocks, ..PassOptions::default() };
    let report = atoll_passes::transform_with(
        &mut module,
        &["virtualize_block_index", "outline_kernel_body"],
        &options,
        &mut |_, _| {},
    )?;
    let reason = |kernel: &KernelReport| match (&kernel.virtualization, &kernel.outlining) {
        (Virtualization::Refused(reason), _) => Some(reason.to_string()),
        (_, Outlining::Refused(reason)) => Some(reason.to_string()),
        _ => None,
    };
    Ok(report.kernels.iter().map(reason).collect())
}

fn facts(kernel: &LaunchedKernel, report: &KernelReport, rerun: RerunFact, form: Option<FenceForm>) -> KernelFacts {
    let (dynamic_shared_bytes, fault_word) = (kernel.dynamic_shared_bytes, form == Some(FenceForm::Exit));
    KernelFacts {
        name: kernel.name.clone(),
        block: kernel.block,
        params_bytes: report.params_bytes,
        preempt_offset: report.preempt_offset(),
        fence: report.fence_offset().map(|offset| FenceFacts { offset, dynamic_shared_bytes, fault_word }),
        shared_bytes: report.shared_bytes.saturating_add(dynamic_shared_bytes),
        rerun: Some(rerun),
        loop_checks: report.loops.iter().filter(|l| matches!(l.decision, LoopDecision::Checked { .. })).count() as u32,
        ..KernelFacts::default()
    }
}

/// Lowers a module to the code of a target; native code comes with the PTX it was made from.
/// Completes the facts of the kernels. `plain` is the module before the passes, if it differs.
fn lower(
    target: Target,
    module: &Module,
    plain: Option<&Module>,
    facts: &mut [KernelFacts],
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<(Vec<u8>, Option<String>), CompileError> {
    if let Target::Nvidia(architecture) = target {
        let ptxas = if options.assemble { atoll_target_nvidia::find_ptxas() } else { None };
        let image = atoll_target_nvidia::compile(module, plain, facts, architecture, ptxas.as_ref())?;
        return Ok(match image.cubin {
            Some(cubin) => (cubin, Some(image.ptx)),
            None => (image.ptx.into_bytes(), None),
        });
    }
    if let Target::Amd(architecture) = target {
        let (text, located) = atoll_ptx::print_located(module);
        let (elf, ir) = native::compile_amd(&located, facts, architecture, observer.wants(Form::Llvm))?;
        observer.form(Form::Llvm, "lower", &|| ir.clone());
        return Ok((elf, Some(text)));
    }
    let shapes: Vec<native::Shape<'_>> = facts.iter().map(|facts| (facts.name.as_str(), facts.block)).collect();
    // Line numbers in native code refer to the text that is stored with it.
    let (text, located) = atoll_ptx::print_located(module);
    let native = native::compile(&located, &shapes, target, observer.wants(Form::Llvm), options.kernel_cache.clone())?;
    for (facts, scratch_bytes) in facts.iter_mut().zip(native.scratch_bytes) {
        facts.scratch_bytes = scratch_bytes;
    }
    observer.form(Form::Llvm, "lower", &|| native.ir.clone());
    Ok((native.elf, Some(text)))
}
