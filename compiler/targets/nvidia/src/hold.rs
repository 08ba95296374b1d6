//! Keeps what passes added from costing occupancy.
//!
//! A pass that adds a few instructions changes how an assembler schedules all others, and it may
//! take registers that it could do without: one more can mean a warp less for every four. So a
//! kernel that came out above the registers of its plain form is assembled again with a limit,
//! unless that makes it spill or cannot be done.

use crate::{
    Architecture, AssembleError, AssembleReport, Assembled, KernelResources, NvidiaError, Ptxas, portable_text,
};
use atoll_ptx::{Directive, ItemKind, Module, Name};
use std::collections::BTreeMap;

/// Registers are handed out to a thread in multiples of this on every architecture.
const GRANULE: u32 = 8;

/// A module that was assembled, and the kernels that are limited in it.
#[derive(Clone, Debug)]
pub struct Held {
    /// What the assembler made.
    pub assembled: Assembled,
    /// Most registers of a thread, by kernel.
    pub limits: BTreeMap<Name, u32>,
}

/// Assembles a module whose kernels shall need no more registers than those of `plain`, as far as
/// that makes no kernel spill.
pub fn assemble_held(
    ptxas: &Ptxas,
    module: &Module,
    architecture: Architecture,
    plain: &AssembleReport,
) -> Result<Held, NvidiaError> {
    let assemble = |limits: &BTreeMap<Name, u32>| -> Result<Assembled, NvidiaError> {
        let text = if limits.is_empty() {
            portable_text(module, architecture)
        } else {
            portable_text(&limited(module, limits), architecture)
        };
        Ok(ptxas.assemble(&text?, &architecture.to_string())?)
    };
    let free = assemble(&BTreeMap::new())?;
    let mut limits = limits(module, plain, &free.report);
    while !limits.is_empty() {
        let assembled = match assemble(&limits) {
            Ok(assembled) => assembled,
            // Some instructions need more registers at once than a small limit leaves, and assemblers do not always say
            // so in good order. Who has the smallest limit is the likeliest cause.
            Err(NvidiaError::Assemble(
                AssembleError::Refused { .. } | AssembleError::Crashed { .. } | AssembleError::TooSlow,
            )) => {
                let tightest = limits.iter().min_by_key(|(_, limit)| **limit).map(|(name, _)| name.clone());
                tightest.map(|name| limits.remove(&name));
                continue;
            }
            Err(error) => return Err(error),
        };
        let held = limits.len();
        let spilled = |report: &AssembleReport, name: &Name| {
            report.kernels.get(name.as_str()).map_or(0, KernelResources::spill_bytes)
        };
        limits.retain(|name, _| spilled(&assembled.report, name) <= spilled(&free.report, name));
        if limits.len() == held {
            return Ok(Held { assembled, limits });
        }
    }
    Ok(Held { assembled: free, limits })
}

/// The limits that kernels need to have as many registers handed out as their plain forms.
fn limits(module: &Module, plain: &AssembleReport, free: &AssembleReport) -> BTreeMap<Name, u32> {
    let granules = |kernel: &KernelResources| kernel.registers.next_multiple_of(GRANULE);
    let limit = |name: &Name| {
        let [plain, free] = [plain, free].map(|report| report.kernels.get(name.as_str()).map(granules));
        plain.zip(free).filter(|(plain, free)| free > plain).map(|(plain, _)| (name.clone(), plain))
    };
    module.kernels().filter_map(|kernel| limit(&kernel.name)).collect()
}

/// The module with limits on kernels.
fn limited(module: &Module, limits: &BTreeMap<Name, u32>) -> Module {
    let mut module = module.clone();
    for item in &mut module.items {
        let limit = match &item.kind {
            ItemKind::Function(f) if f.body.is_some() => limits.get(&f.name),
            _ => None,
        };
        if let Some(limit) = limit
            && let ItemKind::Function(kernel) = item.edit()
        {
            // One that was there before is higher, or the kernel would not be above.
            kernel.attributes.retain(|attribute| attribute.name != "maxnreg");
            kernel
                .attributes
                .push(Directive { name: Name::new("maxnreg"), arguments: vec![Name::from(limit.to_string())] });
        }
    }
    module
}
