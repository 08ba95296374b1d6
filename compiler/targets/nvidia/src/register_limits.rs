//! Keeps the passes from reducing occupancy.
//!
//! A pass that adds a few instructions changes how the assembler schedules all others. The
//! assembler may then use registers that it does not need, and registers are allocated in multiples
//! of eight: 33 registers instead of 32 take 40, and a fifth of the resident warps is lost. A
//! kernel that needs more registers than its untransformed form is therefore assembled again with a
//! limit, unless it then spills more or cannot be assembled.

use crate::{
    Architecture, AssembleError, AssembleReport, Assembled, KernelResources, NvidiaError, Ptxas, portable_text,
};
use atoll_ptx::{Directive, ItemKind, Module, Name};
use std::collections::BTreeMap;

/// Registers are allocated to a thread in multiples of this, on every architecture.
const GRANULE: u32 = 8;

/// An assembled module, and its kernels with register limits.
#[derive(Clone, Debug)]
pub struct LimitedAssembly {
    /// The assembler's output.
    pub assembled: Assembled,
    /// Limit on the registers per thread, by kernel.
    pub limits: BTreeMap<Name, u32>,
}

/// Assembles a module so that its kernels need no more registers than those of `plain`, as far as
/// no kernel spills because of it.
///
/// # Errors
/// [`NvidiaError`], if the module cannot be assembled without limits.
pub fn assemble_with_limits(
    ptxas: &Ptxas,
    module: &Module,
    architecture: Architecture,
    plain: &AssembleReport,
) -> Result<LimitedAssembly, NvidiaError> {
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
            // Some instructions need more registers at once than a small limit leaves, and
            // assemblers do not always report this properly. The kernel with the smallest limit is
            // the most likely cause.
            Err(NvidiaError::Assemble(
                AssembleError::Refused { .. } | AssembleError::Crashed { .. } | AssembleError::TooSlow,
            )) => {
                let tightest = limits.iter().min_by_key(|(_, limit)| **limit).map(|(name, _)| name.clone());
                tightest.map(|name| limits.remove(&name));
                continue;
            }
            Err(error) => return Err(error),
        };
        let count = limits.len();
        let spilled = |report: &AssembleReport, name: &Name| {
            report.kernels.get(name.as_str()).map_or(0, KernelResources::spill_bytes)
        };
        limits.retain(|name, _| spilled(&assembled.report, name) <= spilled(&free.report, name));
        if limits.len() == count {
            return Ok(LimitedAssembly { assembled, limits });
        }
    }
    Ok(LimitedAssembly { assembled: free, limits })
}

/// The limits with which kernels get as many registers allocated as their untransformed forms.
fn limits(module: &Module, plain: &AssembleReport, free: &AssembleReport) -> BTreeMap<Name, u32> {
    let granules = |kernel: &KernelResources| kernel.registers.next_multiple_of(GRANULE);
    let limit = |name: &Name| {
        let [plain, free] = [plain, free].map(|report| report.kernels.get(name.as_str()).map(granules));
        plain.zip(free).filter(|(plain, free)| free > plain).map(|(plain, _)| (name.clone(), plain))
    };
    module.kernels().filter_map(|kernel| limit(&kernel.name)).collect()
}

/// The module with register limits on kernels.
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
            // A limit that was already there is higher; otherwise the kernel would not have
            // exceeded this one.
            kernel.attributes.retain(|attribute| attribute.name != "maxnreg");
            kernel
                .attributes
                .push(Directive { name: Name::new("maxnreg"), arguments: vec![Name::from(limit.to_string())] });
        }
    }
    module
}
