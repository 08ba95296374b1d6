//! The NVIDIA target: PTX text is the code, and the driver assembles it (design D1). No LLVM.
//!
//! [`compile`] prints a module under the lowest `.version` that it needs, so that old drivers take
//! it, and has `ptxas`, where it is asked for and installed, assemble it for one architecture and
//! tell registers and spills of each kernel: the facts that occupancy is computed from. Without it
//! registers are estimated, and marked as such.
//!
//! What it is not: it transforms no kernels and models no occupancy.

mod architecture;
mod estimate;
mod hold;
mod machine_code;
mod ptxas;
mod version;

pub use architecture::{Architecture, UnknownArchitecture};
pub use estimate::estimate_registers;
pub use hold::{Held, assemble_held};
pub use machine_code::{InnerLoop, MachineCode, NoMachineCode, machine_code};
pub use ptxas::{AssembleError, AssembleReport, Assembled, KernelResources, Ptxas, find_ptxas};
pub use version::{PtxVersion, declared_sm, declared_version, lowest_version};

use atoll_kgraph::KernelFacts;
use atoll_ptx::Module;

/// Why a module is no image for an architecture.
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The module asks for a newer GPU.
    #[error(
        "the module is for {declared}, which is newer than {wanted}; name later architectures as targets, or make PTX for an older one"
    )]
    TooNew {
        /// Its `.target`.
        declared: String,
        /// What it was to be compiled for.
        wanted: Architecture,
    },
    /// The assembler does not take it.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The facts name a kernel that the module does not have.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
}

/// A module compiled for an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaImage {
    /// Its text, which the driver of this and every newer GPU takes.
    pub ptx: String,
    /// Machine code for this architecture alone, where an assembler made it.
    pub cubin: Option<Vec<u8>>,
}

/// Compiles a module; `kernels` learn their registers and spills. With an assembler the module is
/// checked, and there is machine code, in which kernels are held to the registers of their forms in
/// `plain`, the module before passes.
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
            assemble_held(ptxas, module, architecture, &plain.report)?.assembled
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

/// The text of a module for an architecture, under the lowest `.version` that it needs: what
/// [`compile`] assembles.
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

/// The text of a module under the lowest `.version` that it needs, for the GPUs that it was written
/// for.
pub fn lowest_text(module: &Module) -> String {
    let lowest =
        lowest_version(module).filter(|&lowest| declared_version(module).is_some_and(|declared| lowest < declared));
    lowest.map_or_else(|| atoll_ptx::print(module), |lowest| atoll_ptx::print(&version::with_version(module, lowest)))
}
