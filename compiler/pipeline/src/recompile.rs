//! Recompiles the kernels of a bundle, for daemons that do not trust its author.
//!
//! Two things come from the bundle: the PTX before the passes, and the launches of the graph's
//! nodes (kernels, block shapes, dynamic shared memory, grids and arguments). Everything else about
//! the kernels comes from this compilation: code, parameter layout, rerun facts, registers,
//! effects.

use crate::code::compile_target;
use crate::error::CompileError;
use crate::kernels::{Kernels, LaunchedKernel};
use crate::observer::{Clock, Observer};
use crate::options::CompileOptions;
use crate::stage::Stage;
use crate::targets::Target;
use atoll_kgraph::{Bundle, KernelFacts, TargetContents, TargetImage};
use atoll_passes::{KernelReport, TransformOptions};
use atoll_ptx::Module;

/// Why the kernels of a bundle cannot be recompiled. Only the author of the bundle can correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecompileError {
    /// The bundle has code for a target without the PTX that the code was compiled from.
    #[error("the bundle has no PTX from before the passes for {target}")]
    NoSource {
        /// The target.
        target: String,
    },
    /// The bundle has no code for any of the targets.
    #[error("the bundle has no code for {wanted}; it has code for {has}")]
    NoTarget {
        /// The requested targets.
        wanted: String,
        /// The targets of the bundle.
        has: String,
    },
    /// The PTX of a target cannot be parsed.
    #[error("the PTX for {target} cannot be read: {reason}")]
    Syntax {
        /// The target.
        target: String,
        /// The syntax errors.
        reason: String,
    },
    /// The kernels that a target lists are not those of its PTX.
    #[error("the kernels that the bundle lists for {target} are not those of its PTX: {difference}")]
    Kernels {
        /// The target.
        target: String,
        /// The first difference.
        difference: String,
    },
}

/// Recompiles the kernels of a bundle for the targets in `options`. A host target is compiled from
/// its own PTX, or from that of another CPU level. NVIDIA targets are those of the bundle.
///
/// # Errors
/// [`RecompileError`], an error in the PTX, or a kernel that cannot be fenced although
/// [`CompileOptions::fences`] wants it.
pub fn recompile(
    bundle: &Bundle,
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<Vec<TargetContents>, CompileError> {
    let pairs: Vec<(Target, &TargetImage)> = pairs(bundle, &options.targets)?;
    let mut clock = Clock::new(observer, 4 * pairs.len());
    let mut targets = Vec::new();
    for (target, image) in pairs {
        let kernels = clock.stage(Stage::Import, || kernels(bundle, image))?;
        let (contents, _) = compile_target(kernels, target, options, &mut clock, observer)?;
        targets.push(TargetContents { source: None, ..contents });
    }
    Ok(targets)
}

/// Pairs each target to compile for with the target of the bundle that has its launches.
fn pairs<'b>(bundle: &'b Bundle, wanted: &[Target]) -> Result<Vec<(Target, &'b TargetImage)>, RecompileError> {
    let image = |name: &str| bundle.target(name);
    let mut pairs = Vec::new();
    for &target in wanted {
        if matches!(target, Target::Nvidia(_)) {
            let nvidia = Target::all().filter(|target| matches!(target, Target::Nvidia(_)));
            pairs.extend(nvidia.filter_map(|target| Some((target, image(target.name())?))));
        } else if matches!(target, Target::Amd(_)) {
            pairs.extend(image(target.name()).map(|image| (target, image)));
        } else {
            let levels = [target, Target::HostV4, Target::HostV3];
            pairs.extend(levels.iter().find_map(|level| Some((target, image(level.name())?))));
        }
    }
    if pairs.is_empty() {
        let names = |names: Vec<&str>| names.join(", ");
        return Err(RecompileError::NoTarget {
            wanted: names(wanted.iter().map(|target| target.name()).collect()),
            has: names(bundle.target_names().collect()),
        });
    }
    Ok(pairs)
}

/// The kernels of a target before the passes, with their launches.
fn kernels(bundle: &Bundle, image: &TargetImage) -> Result<Kernels, CompileError> {
    let source = bundle.source(&image.name)?;
    let source = source.ok_or_else(|| RecompileError::NoSource { target: image.name.clone() })?;
    let invalid = |error: atoll_ptx::SyntaxErrors| RecompileError::Syntax {
        target: image.name.clone(),
        reason: error.to_string(),
    };
    let module = atoll_ptx::parse(&source).map_err(invalid)?;
    let reports = plain_reports(&module)?;
    check_names(image, &reports)?;
    let kernels = image.kernels.iter().zip(&reports).map(|(facts, report)| LaunchedKernel {
        name: facts.name.clone(),
        block: facts.block,
        dynamic_shared_bytes: dynamic_shared_bytes(facts, report),
    });
    let kernels = kernels.collect();
    Ok(Kernels { module, kernels, launches: image.launches.clone() })
}

/// The resources that the kernels need without the passes that add parameters or checks.
pub(crate) fn plain_reports(module: &Module) -> Result<Vec<KernelReport>, CompileError> {
    let passes = TransformOptions { shared_to_dynamic: true, ..TransformOptions::NONE };
    Ok(atoll_passes::transform(&mut module.clone(), &passes, &mut |_, _| {})?.kernels)
}

/// The dynamic shared memory of a launch in bytes. The bundle has the sum of it, the static memory
/// and the bytes that its passes added. Those are a few bytes, which the kernel may get in
/// addition.
fn dynamic_shared_bytes(facts: &KernelFacts, report: &KernelReport) -> u32 {
    if report.has_dynamic_shared { facts.shared_bytes.saturating_sub(report.shared_bytes) } else { 0 }
}

fn check_names(image: &TargetImage, reports: &[KernelReport]) -> Result<(), RecompileError> {
    let fails = |difference| Err(RecompileError::Kernels { target: image.name.clone(), difference });
    if image.kernels.len() != reports.len() {
        return fails(format!("{} are listed, the PTX has {}", image.kernels.len(), reports.len()));
    }
    match image.kernels.iter().zip(reports).find(|(facts, report)| facts.name != report.name) {
        Some((facts, report)) => fails(format!("`{}` is listed in place of `{}`", facts.name, report.name)),
        None => Ok(()),
    }
}
