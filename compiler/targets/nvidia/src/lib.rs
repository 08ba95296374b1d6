//! The NVIDIA target: prints PTX for the driver, and runs `ptxas` if it is available. It does not
//! need LLVM.
//!
//! Start at [`compile`]. It prints a module under the lowest `.version` that the module needs, so
//! that old drivers accept it. If the caller passes a [`Ptxas`], `compile` also assembles the
//! module for one architecture and reports the registers and spills of each kernel, from which
//! occupancy is computed. Without a [`Ptxas`] it estimates the registers and marks them as
//! estimates.
//!
//! Invariant: the `.target` of a module is never newer than the architecture that it is compiled
//! for.
//!
//! This crate transforms no kernels and does not model occupancy.

mod architecture;
mod estimate;
mod machine_code;
mod ptxas;
mod register_limits;
mod version;

pub use architecture::{Architecture, UnknownArchitecture};
pub use estimate::estimate_registers;
pub use machine_code::{InnerLoop, MachineCode, NoMachineCode, machine_code};
pub use ptxas::{AssembleError, AssembleReport, Assembled, KernelResources, Ptxas, find_ptxas};
pub use register_limits::{LimitedAssembly, assemble_with_limits};
pub use version::{PtxVersion, declared_sm, declared_version, lowest_version};

use atoll_kgraph::KernelFacts;
use atoll_ptx::Module;

/// Why a module cannot be compiled for an architecture.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The module requires a newer GPU.
    #[error(
        "the module is for {declared}, which is newer than {wanted}; \
         compile for a later architecture, or generate PTX for an older one"
    )]
    TooNew {
        /// Its `.target`.
        declared: String,
        /// The requested architecture.
        wanted: Architecture,
    },
    /// The assembler rejected it.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The facts name a kernel that is not in the module.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
}

/// A module compiled for an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaImage {
    /// PTX text that drivers accept for this architecture and every newer one.
    pub ptx: String,
    /// Machine code for this architecture only, if an assembler was available.
    pub cubin: Option<Vec<u8>>,
}

/// Compiles a module, and fills in the registers and spills of `kernels`. With `ptxas` the module
/// is checked and assembled to machine code. If `plain`, the module before the passes, is given
/// too, a kernel is limited to the registers that it needs in `plain`, unless it would spill more
/// ([`assemble_with_limits`]).
///
/// # Errors
/// [`NvidiaError`], if the module is for a newer GPU, the assembler rejects it, or `kernels` names
/// a kernel that is not in it.
pub fn compile(
    module: &Module,
    plain: Option<&Module>,
    kernels: &mut [KernelFacts],
    architecture: Architecture,
    ptxas: Option<&Ptxas>,
) -> Result<NvidiaImage, NvidiaError> {
    let ptx = portable_text(module, architecture)?;
    let Some(ptxas) = ptxas else {
        for facts in kernels {
            let kernel = module.function(&facts.name).ok_or_else(|| NvidiaError::NoKernel(facts.name.clone()))?;
            facts.registers = estimate_registers(module, kernel);
            facts.registers_estimated = facts.registers.is_some();
        }
        return Ok(NvidiaImage { ptx, cubin: None });
    };
    let assembled = match plain {
        Some(plain) => {
            let plain = ptxas.assemble(&portable_text(plain, architecture)?, &architecture.to_string())?;
            assemble_with_limits(ptxas, module, architecture, &plain.report)?.assembled
        }
        None => ptxas.assemble(&ptx, &architecture.to_string())?,
    };
    for facts in kernels {
        let resources =
            assembled.report.kernels.get(&facts.name).ok_or_else(|| NvidiaError::NoKernel(facts.name.clone()))?;
        facts.registers = Some(resources.registers);
        facts.registers_estimated = false;
        facts.spill_bytes = Some(resources.spill_bytes());
    }
    Ok(NvidiaImage { ptx, cubin: Some(assembled.cubin) })
}

/// The text of a module for an architecture, under the lowest `.version` that it needs; the input
/// of the assembler in [`compile`].
///
/// # Errors
/// [`NvidiaError::TooNew`], if the module is for a newer GPU.
pub fn portable_text(module: &Module, architecture: Architecture) -> Result<String, NvidiaError> {
    match declared_sm(module) {
        Some(sm) if sm <= architecture.sm() => {}
        declared => {
            let declared = declared.map_or("a GPU of its own".to_owned(), |sm| format!("sm_{sm}"));
            return Err(NvidiaError::TooNew { declared, wanted: architecture });
        }
    }
    Ok(lowest_text(module))
}

/// The text of a module under the lowest `.version` that it needs, for the GPUs that its `.target`
/// names.
pub fn lowest_text(module: &Module) -> String {
    let lowest =
        lowest_version(module).filter(|&lowest| declared_version(module).is_some_and(|declared| lowest < declared));
    lowest.map_or_else(|| atoll_ptx::print(module), |lowest| atoll_ptx::print(&version::with_version(module, lowest)))
}
