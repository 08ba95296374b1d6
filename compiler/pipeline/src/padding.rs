//! dkp modules for bundles that are on a device together (design D6).
//!
//! Candidates are made anew from the kernels that the bundles hold, which takes a fraction of what lowering them takes: so a bundle carries each kernel once. They keep their preemption flag, and with
//! it the progress map: what ran beside others is not run again.

use crate::error::CompileError;
use crate::targets::Target;
use atoll_kgraph::dkp::{CandidateFacts, DkpFacts};
use atoll_kgraph::{Bundle, DiskCache, KernelFacts};
use atoll_passes::{PassOptions, transform_with};
use atoll_proxy_kernels::{Candidate, DeviceModel, candidate_facts, dkp_modules};
use atoll_ptx::Module;
use atoll_target_host::{KernelShape, Options};
use std::sync::Arc;

/// What makes a candidate of a kernel as it stands in a bundle.
const PASSES: &[&str] = &["virtualize_block_index", "outline_kernel_body"];

/// Bytes of parameters that a launch on the host device can carry.
const PARAMS_BYTES: u32 = 512;

/// Registers of a kernel where nobody shares them out.
const REGISTERS: u32 = 32;

/// A dkp module for the host device.
#[derive(Clone, Debug)]
pub struct PaddedKernels {
    /// The object.
    pub code: Vec<u8>,
    /// Its one kernel.
    pub kernel: KernelFacts,
    /// How its launches are laid out.
    pub facts: DkpFacts,
    /// For each candidate the index of its bundle, and of its kernel there.
    pub kernels: Vec<(usize, u32)>,
}

/// The kernels of a bundle, those that can be made candidates of.
struct Prepared {
    module: Module,
    candidates: Vec<(u32, KernelFacts, CandidateFacts)>,
}

/// Makes one module of all kernels of some bundles that can share launches; `None` if there are none. Only for host targets.
///
/// # Errors
/// Kernels that cannot be read or lowered, which means that a bundle is not one of ours.
pub fn pad_bundles(target: Target, bundles: &[Arc<Bundle>], cache: Option<Arc<DiskCache>>) -> Result<Option<PaddedKernels>, CompileError> {
    let Some(level) = target.host_level() else { return Ok(None) };
    let prepared = bundles.iter().map(|bundle| prepare(bundle, target)).collect::<Result<Vec<Prepared>, _>>()?;
    let mut candidates = Vec::new();
    let mut kernels = Vec::new();
    for (index, Prepared { module, candidates: of_bundle }) in prepared.iter().enumerate() {
        for (number, kernel, facts) in of_bundle {
            let (block, dynamic_shared_bytes) = (kernel.block, kernel.shared_bytes);
            candidates.push(Candidate { module, kernel: &kernel.name, facts, block, registers: REGISTERS, dynamic_shared_bytes });
            kernels.push((index, *number));
        }
    }
    let device = DeviceModel::find("host").expect("a device of the table");
    let Some(dkp) = dkp_modules(&candidates, device, PARAMS_BYTES).modules.into_iter().next() else { return Ok(None) };
    let facts = dkp.facts;
    let block = [facts.threads, 1, 1];
    let text = atoll_ptx::print(&dkp.module);
    let shapes = [KernelShape { name: facts.entry.as_str().into(), block }];
    let object = atoll_target_host::compile(&atoll_ptx::parse(&text)?, &shapes, level, &Options { cache, ..Options::default() })?;
    let kernel = KernelFacts {
        name: facts.entry.clone(),
        block,
        params_bytes: facts.params_bytes,
        shared_bytes: facts.shared_bytes,
        scratch_bytes: object.kernels.first().map_or(0, |kernel| kernel.scratch_bytes),
        ..KernelFacts::default()
    };
    let kernels = facts.candidates.iter().map(|candidate| kernels[candidate.index]).collect();
    Ok(Some(PaddedKernels { code: object.elf, kernel, facts, kernels }))
}

fn prepare(bundle: &Bundle, target: Target) -> Result<Prepared, CompileError> {
    let name = target.name();
    let kernels = bundle.target(name).map_or(&[][..], |image| &image.kernels);
    let text = String::from_utf8_lossy(bundle.ptx(name).unwrap_or_default());
    let mut module = atoll_ptx::parse(&text)?;
    let blocks = kernels.iter().map(|kernel| (kernel.name.as_str().into(), kernel.block)).collect();
    let report = transform_with(&mut module, PASSES, &PassOptions { blocks, ..PassOptions::default() }, &mut |_, _| {})?;
    let candidate = |(number, kernel): (usize, &KernelFacts)| {
        // What cannot be cut keeps no progress map, and what ran of it beside others would run again.
        kernel.preempt_offset?;
        let report = report.kernels.iter().find(|report| *report.name == kernel.name)?;
        Some((number as u32, kernel.clone(), candidate_facts(report).ok()?))
    };
    let candidates = kernels.iter().enumerate().filter_map(candidate).collect();
    Ok(Prepared { module, candidates })
}
