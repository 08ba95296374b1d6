//! dkp modules for bundles that are loaded together (dynamic kernel padding, REEF §5).
//!
//! Candidates are generated from the kernels in the bundles. This takes much less time than
//! lowering, so bundles do not carry candidates. A candidate keeps the preemption parameters of its
//! kernel and thus the progress map, so blocks that ran in a padded launch are not run again.
//!
//! The host device uses one module with all candidates. A GPU uses one module per register class,
//! which the driver assembles. An AMD GPU uses one code object per occupancy level: its candidates
//! and the proxy kernel that jumps to them. The module of a class or level also contains the
//! candidates with fewer registers, so that these share launches with its own.

use crate::error::CompileError;
use crate::native;
use crate::targets::{AmdArchitecture, Target};
use atoll_kgraph::dkp::{CandidateFacts, DkpFacts};
use atoll_kgraph::validate::PARAMS_BYTES_MAX;
use atoll_kgraph::{AmdFacts, Bundle, DiskCache, KernelFacts};
use atoll_passes::{PassOptions, transform_with};
use atoll_proxy_kernels::{AmdModel, Candidate, DeviceModel, DkpModule, candidate_facts, dkp_modules};
use atoll_ptx::Module;
use atoll_target_nvidia::{Architecture, Ptxas, estimate_registers, find_ptxas, portable_text};
use std::collections::HashMap;
use std::sync::Arc;

/// The passes that make a candidate from a kernel of a bundle, for NVIDIA GPUs and for targets that
/// LLVM compiles for. LLVM reduces divisions itself.
const GPU_PASSES: &[&str] = &["virtualize_block_index", "reduce_divisions", "outline_kernel_body"];
const LLVM_PASSES: &[&str] = &["virtualize_block_index", "outline_kernel_body"];

/// Registers of a kernel on targets that do not limit them.
const REGISTERS: u32 = 32;

/// Maximum number of registers per thread of any NVIDIA GPU. Larger estimates are clamped.
const REGISTERS_MAX: u32 = 255;

/// The device model that is used for every NVIDIA GPU: all supported architectures have register files of
/// the same size.
const GPU: &str = "t4";

/// A register estimate is increased by `1 / ESTIMATE_DIVISOR`, because a class that is too small
/// causes spills. Nine of ten estimates reach two thirds of the assembler's count.
const ESTIMATE_DIVISOR: u32 = 2;

/// A dkp module.
#[derive(Clone, Debug)]
pub struct PaddedKernels {
    /// An object for host targets, PTX for NVIDIA, a code object for AMD.
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

/// Makes modules of all kernels in `bundles` that can share launches, ordered by the registers of
/// their entries. Two kernels can share a launch only if one module contains both.
///
/// # Errors
/// A kernel cannot be parsed or lowered: the bundle was not written by this compiler.
pub fn pad_bundles(
    target: Target,
    bundles: &[Arc<Bundle>],
    cache: Option<Arc<DiskCache>>,
) -> Result<Vec<PaddedKernels>, CompileError> {
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
    loop {
        match modules(target, &candidates, &origins, cache.as_ref())? {
            Attempt::Padded(modules) => return Ok(modules),
            Attempt::Without(index) => {
                candidates.remove(index);
                origins.remove(index);
            }
        }
    }
}

/// The result of compiling modules for a set of candidates.
enum Attempt {
    Padded(Vec<PaddedKernels>),
    /// The candidate with this index does not fit the proxy kernel of its module: it needs more
    /// registers than it had in a kernel of its own, or too much shared memory.
    Without(usize),
}

/// Makes the modules for a set of candidates; `origins` are their bundles and kernels.
fn modules(
    target: Target,
    candidates: &[Candidate<'_>],
    origins: &[(usize, u32)],
    cache: Option<&Arc<DiskCache>>,
) -> Result<Attempt, CompileError> {
    let mut modules = Vec::new();
    for dkp in dkp_modules(candidates, device(target), PARAMS_BYTES_MAX).modules {
        let Code { code, scratch_bytes, amd } = match lower(target, &dkp, cache.cloned())? {
            Lowered::Code(code) => code,
            Lowered::Without(candidate) => return Ok(Attempt::Without(dkp.facts.candidates[candidate].index)),
        };
        let facts = dkp.facts;
        let kernel = |threads: &u32| KernelFacts {
            name: facts.entry.clone(),
            block: [*threads, 1, 1],
            params_bytes: facts.params_bytes,
            scratch_bytes,
            registers: amd.map(|amd| amd.vgprs),
            amd,
            ..KernelFacts::default()
        };
        let candidates = facts.candidates.iter().map(|candidate| origins[candidate.index]).collect();
        modules.push(PaddedKernels { code, kernels: facts.threads.iter().map(kernel).collect(), candidates, facts });
    }
    Ok(Attempt::Padded(modules))
}

/// The model of the device that a target's modules are made for.
fn device(target: Target) -> &'static DeviceModel {
    let find = |name| DeviceModel::find(name).expect("`t4` and `host` are rows of the device table");
    match target {
        Target::Nvidia(_) => find(GPU),
        Target::HostV3 | Target::HostV4 => find("host"),
        Target::Amd(architecture) => &amd_model(architecture).device,
    }
}

fn amd_model(architecture: AmdArchitecture) -> &'static AmdModel {
    AmdModel::find(architecture.name()).expect("padding knows every architecture that is compiled for")
}

/// The code of a module.
struct Code {
    code: Vec<u8>,
    /// Scratch memory that one of its blocks needs, in bytes.
    scratch_bytes: u32,
    /// The resources of its proxy kernel.
    amd: Option<AmdFacts>,
}

/// A module's code, or the index of a candidate that does not fit the proxy kernel.
enum Lowered {
    Code(Code),
    Without(usize),
}

fn lower(target: Target, dkp: &DkpModule, cache: Option<Arc<DiskCache>>) -> Result<Lowered, CompileError> {
    let entry = dkp.facts.entry.as_str();
    match target {
        Target::Nvidia(architecture) => {
            let code = portable_text(&dkp.module, architecture)?.into_bytes();
            Ok(Lowered::Code(Code { code, scratch_bytes: 0, amd: None }))
        }
        Target::HostV3 | Target::HostV4 => {
            let shapes: Vec<native::Shape<'_>> =
                dkp.facts.threads.iter().map(|threads| (entry, [*threads, 1, 1])).collect();
            let native = native::compile(&atoll_ptx::print_located(&dkp.module).1, &shapes, target, false, cache)?;
            let scratch_bytes = native.scratch_bytes.first().copied().unwrap_or(0);
            Ok(Lowered::Code(Code { code: native.elf, scratch_bytes, amd: None }))
        }
        Target::Amd(architecture) => {
            let proxy = amd_model(architecture).proxy(dkp).expect("modules of this device have jump targets");
            let module = atoll_ptx::print_located(&dkp.module).1;
            Ok(match native::compile_amd_proxy(&module, dkp, proxy, architecture)? {
                Ok((code, amd)) => Lowered::Code(Code { code, scratch_bytes: 0, amd: Some(amd) }),
                Err(candidate) => Lowered::Without(candidate),
            })
        }
    }
}

fn prepare(bundle: &Bundle, target: Target) -> Result<Prepared, CompileError> {
    let name = target.name();
    let kernels = bundle.target(name).map_or(&[][..], |image| &image.kernels);
    let mut module = atoll_ptx::parse(&String::from_utf8_lossy(bundle.ptx(name).unwrap_or_default()))?;
    let blocks = kernels.iter().map(|kernel| (kernel.name.as_str().into(), kernel.block)).collect();
    let passes = if matches!(target, Target::Nvidia(_)) { GPU_PASSES } else { LLVM_PASSES };
    let report =
        transform_with(&mut module, passes, &PassOptions { blocks, ..PassOptions::default() }, &mut |_, _| {})?;
    let registers = match target {
        Target::Nvidia(architecture) => registers(&module, kernels, architecture),
        Target::Amd(architecture) => amd_registers(&module, kernels, architecture),
        Target::HostV3 | Target::HostV4 => HashMap::new(),
    };
    let candidate = |(number, kernel): (usize, &KernelFacts)| {
        // A kernel that is not preemptible has no progress map, so its padded blocks would run
        // twice.
        kernel.preempt_offset?;
        let report = report.kernels.iter().find(|report| *report.name == kernel.name)?;
        let registers = match (registers.get(&kernel.name), target) {
            (Some(registers), _) => *registers,
            (None, Target::Amd(_)) => return None,
            (None, _) => REGISTERS,
        };
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

/// Registers of the occupancy level of each kernel: those of the level with the most waves that has
/// enough vector and scalar registers. Kernels are absent that need scratch memory or accumulators,
/// or that this target refuses.
fn amd_registers(module: &Module, kernels: &[KernelFacts], architecture: AmdArchitecture) -> HashMap<String, u32> {
    let module = atoll_ptx::print_located(module).1;
    // Blocks of a candidate are linear, with a last warp that is full.
    let linear = |kernel: &KernelFacts| {
        let threads = kernel.block.iter().product::<u32>().next_multiple_of(32);
        KernelFacts { block: [threads, 1, 1], amd: None, ..kernel.clone() }
    };
    let mut facts: Vec<KernelFacts> =
        kernels.iter().filter(|kernel| kernel.preempt_offset.is_some()).map(linear).collect();
    if native::compile_amd(&module, &mut facts, architecture, false).is_err() {
        for kernel in &mut facts {
            // An error leaves the facts absent, so the kernel is no candidate.
            let _ = native::compile_amd(&module, std::slice::from_mut(kernel), architecture, false);
        }
    }
    let of_kernel = |kernel: &KernelFacts| {
        let amd = kernel.amd.filter(|amd| amd.private_bytes == 0 && amd.agprs == 0)?;
        Some((kernel.name.clone(), amd_model(architecture).level_of(amd.vgprs, amd.sgprs)?.vgprs))
    };
    facts.iter().filter_map(of_kernel).collect()
}

/// Registers per thread of each kernel, by the assembler. `None` if it fails, in which case the
/// driver may still accept the kernels: ptxas 12.9 aborts ("double free") if a parameter has the
/// name of another kernel, and dkp modules rename both.
fn count(ptxas: &Ptxas, module: &Module, architecture: Architecture) -> Option<HashMap<String, u32>> {
    let assembled = ptxas.assemble(&portable_text(module, architecture).ok()?, &architecture.to_string()).ok()?;
    Some(assembled.report.kernels.into_iter().map(|(name, resources)| (name, resources.registers)).collect())
}
