//! dkp modules for bundles that are on a device together (design D6).
//!
//! Candidates are made anew from the kernels that the bundles hold, which takes a fraction of what
//! lowering them takes: so a bundle carries each kernel once. They keep their preemption flag, and
//! with it the progress map: what ran beside others is not run again.
//!
//! On the host device one module holds them all; on a GPU there is one for each register class, and
//! its driver assembles it.

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

/// What makes a candidate of a kernel as it stands in a bundle, for a GPU and for a host, whose
/// compiler reduces divisions itself.
const GPU_PASSES: &[&str] = &["virtualize_block_index", "reduce_divisions", "outline_kernel_body"];
const HOST_PASSES: &[&str] = &["virtualize_block_index", "outline_kernel_body"];

/// Bytes of parameters that a launch can carry ([`atoll_kgraph::dkp`]): as many as its addresses
/// can be marked in.
const PARAMS_BYTES: u32 = 512;

/// Registers of a kernel where nobody shares them out.
const REGISTERS: u32 = 32;

/// Most registers of a thread of any NVIDIA GPU; what an estimate says beyond is not so.
const REGISTERS_MAX: u32 = 255;

/// The GPU whose register file is shared out: that of every architecture there is code for holds as
/// many.
const GPU: &str = "t4";

/// An estimate of registers gets one part in so many on top: a class too small would spill, and
/// nine of ten estimates are two thirds of what an assembler counts or more (BENCHMARKS.md).
const ESTIMATE_DIVISOR: u32 = 2;

/// A dkp module.
#[derive(Clone, Debug)]
pub struct PaddedKernels {
    /// An object for host targets, PTX for NVIDIA.
    pub code: Vec<u8>,
    /// Its one kernel, once for each size that blocks of a launch can have ([`DkpFacts::threads`]).
    pub kernels: Vec<KernelFacts>,
    /// How its launches are laid out.
    pub facts: DkpFacts,
    /// For each candidate the index of its bundle, and of its kernel there.
    pub candidates: Vec<(usize, u32)>,
}

/// The kernels of a bundle, those that can be made candidates of.
struct Prepared {
    module: Module,
    candidates: Vec<PreparedKernel>,
}

struct PreparedKernel {
    /// Its index in the bundle.
    number: u32,
    kernel: KernelFacts,
    facts: CandidateFacts,
    /// What it takes of a thread's registers as a candidate, which is more than by itself.
    registers: u32,
}

/// Makes modules of all kernels of some bundles that can share launches; kernels of different
/// modules cannot.
///
/// # Errors
/// Kernels that cannot be read or lowered, which means that a bundle is not one of ours.
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
    let name = match target {
        Target::Nvidia(_) => GPU,
        Target::HostV3 | Target::HostV4 => "host",
    };
    let device = DeviceModel::find(name).expect("a device of the table");
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

/// The code of a module, and the scratch memory that a block of it needs.
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
        Target::HostV3 | Target::HostV4 => HashMap::new(),
    };
    let candidate = |(number, kernel): (usize, &KernelFacts)| {
        // What cannot be cut keeps no progress map, and what ran of it beside others would run again.
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

/// Registers of a thread of each kernel: counted where an assembler is installed and takes them,
/// otherwise estimated from above.
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

/// `None` where the assembler fails, which does not mean that a driver will: ptxas 12.9 aborts
/// ("double free") where a parameter is called like another kernel, and the names of a dkp module
/// are others.
fn count(ptxas: &Ptxas, module: &Module, architecture: Architecture) -> Option<HashMap<String, u32>> {
    let assembled = ptxas.assemble(&portable_text(module, architecture).ok()?, &architecture.to_string()).ok()?;
    Some(assembled.report.kernels.into_iter().map(|(name, resources)| (name, resources.registers)).collect())
}
