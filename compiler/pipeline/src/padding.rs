//! dkp modules for bundles that are loaded together (dynamic kernel padding, REEF §5).
//!
//! Candidates are generated from the kernels in the bundles. This takes much less time than
//! lowering, so bundles do not carry candidates. A candidate keeps the preemption parameters of its
//! kernel and thus the progress map, so blocks that ran in a padded launch are not run again.
//!
//! The host device uses one module with all candidates. A GPU uses one module per register class,
//! which the driver assembles.

use crate::error::CompileError;
use crate::native;
use crate::targets::Target;
use atoll_kgraph::dkp::{CandidateFacts, DkpFacts};
use atoll_kgraph::{Bundle, DiskCache, KernelFacts};
use atoll_passes::{PassOptions, transform_with};
use atoll_proxy_kernels::{Candidate, DeviceModel, DkpModule, candidate_facts, dkp_modules};
use atoll_ptx::Module;
use atoll_target_nvidia::{Architecture, Ptxas, estimate_registers, find_ptxas, portable_text};
use std::collections::HashMap;
use std::sync::Arc;

/// The passes that make a candidate from a kernel of a bundle, for GPUs and for hosts. The host
/// compiler reduces divisions itself.
const GPU_PASSES: &[&str] = &["virtualize_block_index", "reduce_divisions", "outline_kernel_body"];
const HOST_PASSES: &[&str] = &["virtualize_block_index", "outline_kernel_body"];

/// Bytes of parameters of a dkp launch: a launch record can mark addresses only within these bytes.
const PARAMS_BYTES: u32 = 512;

/// Registers of a kernel on targets that do not limit them.
const REGISTERS: u32 = 32;

/// Maximum number of registers per thread of any NVIDIA GPU. Larger estimates are clamped.
const REGISTERS_MAX: u32 = 255;

/// The device model that is used for every GPU: all supported architectures have register files of
/// the same size.
const GPU: &str = "t4";

/// A register estimate is increased by `1 / ESTIMATE_DIVISOR`, because a class that is too small
/// causes spills. Nine of ten estimates reach two thirds of the assembler's count.
const ESTIMATE_DIVISOR: u32 = 2;

/// A dkp module.
#[derive(Clone, Debug)]
pub struct PaddedKernels {
    /// An object for host targets, PTX for NVIDIA.
    pub code: Vec<u8>,
    /// Its only kernel, once for each block size of a launch ([`DkpFacts::threads`]).
    pub kernels: Vec<KernelFacts>,
    /// The parameter layout of its launches.
    pub facts: DkpFacts,
    /// For each candidate, the index of its bundle and of its kernel in the bundle.
    pub candidates: Vec<(usize, u32)>,
}

/// A bundle's kernels that can be candidates.
struct Prepared {
    module: Module,
    candidates: Vec<PreparedKernel>,
}

struct PreparedKernel {
    /// Its index in the bundle.
    number: u32,
    kernel: KernelFacts,
    facts: CandidateFacts,
    /// Registers per thread as a candidate: more than for the kernel itself.
    registers: u32,
}

/// Makes modules of all kernels in `bundles` that can share launches. Kernels in different modules
/// cannot share a launch.
///
/// # Errors
/// A kernel cannot be parsed or lowered: the bundle was not written by this compiler.
pub fn pad_bundles(
    target: Target,
    bundles: &[Arc<Bundle>],
    cache: Option<Arc<DiskCache>>,
) -> Result<Vec<PaddedKernels>, CompileError> {
    if matches!(target, Target::Amd(_)) {
        // Padding on AMD GPUs needs proxy kernels that jump to candidates; they are not
        // implemented.
        return Ok(Vec::new());
    }
    let prepared = bundles.iter().map(|bundle| prepare(bundle, target)).collect::<Result<Vec<Prepared>, _>>()?;
    let mut candidates = Vec::new();
    let mut origins = Vec::new();
    for (index, Prepared { module, candidates: of_bundle }) in prepared.iter().enumerate() {
        for PreparedKernel { number, kernel, facts, registers } in of_bundle {
            let (block, dynamic_shared_bytes, registers) = (kernel.block, kernel.shared_bytes, *registers);
            candidates.push(Candidate { module, kernel: &kernel.name, facts, block, registers, dynamic_shared_bytes });
            origins.push((index, *number));
        }
    }
    let name = match target {
        Target::Nvidia(_) => GPU,
        Target::HostV3 | Target::HostV4 | Target::Amd(_) => "host",
    };
    let device = DeviceModel::find(name).expect("`t4` and `host` are rows of the device table");
    let padded = |dkp: DkpModule| {
        let (code, scratch_bytes) = lower(target, &dkp, cache.clone())?;
        let facts = dkp.facts;
        let kernel = |threads: &u32| KernelFacts {
            name: facts.entry.clone(),
            block: [*threads, 1, 1],
            params_bytes: facts.params_bytes,
            scratch_bytes,
            ..KernelFacts::default()
        };
        let candidates = facts.candidates.iter().map(|candidate| origins[candidate.index]).collect();
        Ok(PaddedKernels { code, kernels: facts.threads.iter().map(kernel).collect(), candidates, facts })
    };
    dkp_modules(&candidates, device, PARAMS_BYTES).modules.into_iter().map(padded).collect()
}

/// The code of a module, and the scratch memory that one of its blocks needs, in bytes.
fn lower(target: Target, dkp: &DkpModule, cache: Option<Arc<DiskCache>>) -> Result<(Vec<u8>, u32), CompileError> {
    if let Target::Nvidia(architecture) = target {
        return Ok((portable_text(&dkp.module, architecture)?.into_bytes(), 0));
    }
    let shapes: Vec<native::Shape<'_>> =
        dkp.facts.threads.iter().map(|threads| (dkp.facts.entry.as_str(), [*threads, 1, 1])).collect();
    let native = native::compile(&atoll_ptx::print_located(&dkp.module).1, &shapes, target, false, cache)?;
    Ok((native.elf, native.scratch_bytes.first().copied().unwrap_or(0)))
}

fn prepare(bundle: &Bundle, target: Target) -> Result<Prepared, CompileError> {
    let name = target.name();
    let kernels = bundle.target(name).map_or(&[][..], |image| &image.kernels);
    let mut module = atoll_ptx::parse(&String::from_utf8_lossy(bundle.ptx(name).unwrap_or_default()))?;
    let blocks = kernels.iter().map(|kernel| (kernel.name.as_str().into(), kernel.block)).collect();
    let passes = if matches!(target, Target::Nvidia(_)) { GPU_PASSES } else { HOST_PASSES };
    let report =
        transform_with(&mut module, passes, &PassOptions { blocks, ..PassOptions::default() }, &mut |_, _| {})?;
    let registers = match target {
        Target::Nvidia(architecture) => registers(&module, kernels, architecture),
        Target::HostV3 | Target::HostV4 | Target::Amd(_) => HashMap::new(),
    };
    let candidate = |(number, kernel): (usize, &KernelFacts)| {
        // A kernel that is not preemptible has no progress map, so its padded blocks would run
        // twice.
        kernel.preempt_offset?;
        let report = report.kernels.iter().find(|report| *report.name == kernel.name)?;
        let registers = registers.get(&kernel.name).copied().unwrap_or(REGISTERS);
        Some(PreparedKernel {
            number: number as u32,
            kernel: kernel.clone(),
            facts: candidate_facts(report).ok()?,
            registers,
        })
    };
    let candidates = kernels.iter().enumerate().filter_map(candidate).collect();
    Ok(Prepared { module, candidates })
}

/// Registers per thread of each kernel: counted by the assembler if possible, otherwise a high
/// estimate.
fn registers(module: &Module, kernels: &[KernelFacts], architecture: Architecture) -> HashMap<String, u32> {
    let counted =
        if kernels.is_empty() { None } else { find_ptxas().and_then(|ptxas| count(&ptxas, module, architecture)) };
    let of_kernel = |kernel: &KernelFacts| {
        let counted = counted.as_ref().and_then(|counted| counted.get(&kernel.name)).copied();
        let estimated = || {
            let estimated =
                estimate_registers(module, module.function(&kernel.name)?)?.max(kernel.registers.unwrap_or(0));
            Some((estimated + estimated / ESTIMATE_DIVISOR).min(REGISTERS_MAX))
        };
        Some((kernel.name.clone(), counted.or_else(estimated)?))
    };
    kernels.iter().filter_map(of_kernel).collect()
}

/// Registers per thread of each kernel, by the assembler. `None` if it fails, in which case the
/// driver may still accept the kernels: ptxas 12.9 aborts ("double free") if a parameter has the
/// name of another kernel, and dkp modules rename both.
fn count(ptxas: &Ptxas, module: &Module, architecture: Architecture) -> Option<HashMap<String, u32>> {
    let assembled = ptxas.assemble(&portable_text(module, architecture).ok()?, &architecture.to_string()).ok()?;
    Some(assembled.report.kernels.into_iter().map(|(name, resources)| (name, resources.registers)).collect())
}
