//! The NVIDIA target: PTX text is the code, and the driver assembles it (design D1). No LLVM.
//!
//! [`compile`] prints a module under the lowest `.version` that it needs, so that old drivers take it, and has `ptxas`, where it is installed, check it and tell registers
//! and spills of each kernel: the facts that occupancy is computed from.
//!
//! What it is not: it transforms no kernels and models no occupancy.

mod ptxas;
mod version;

pub use ptxas::{AssembleError, AssembleReport, KernelResources, Ptxas, find_ptxas};
pub use version::{PtxVersion, declared_sm, declared_version, lowest_version};

use atoll_kgraph::KernelFacts;
use atoll_ptx::Module;

/// The target image this crate makes: PTX for Turing, which the drivers of all newer GPUs take too.
pub const TARGET_NAME: &str = "nvidia-sm_75";

/// The architecture the image must assemble for.
pub const ARCHITECTURE: &str = "sm_75";

/// [`ARCHITECTURE`] as a number.
const SM: u32 = 75;

/// Why a module is no image for [`TARGET_NAME`].
#[derive(Debug, thiserror::Error)]
pub enum NvidiaError {
    /// The module asks for a newer GPU.
    #[error("the module is for {declared}; {TARGET_NAME} takes up to {ARCHITECTURE}")]
    TooNew {
        /// Its `.target`.
        declared: String,
    },
    /// The assembler does not take it.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The facts name a kernel that the module does not have.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
}

/// The code of a module: its text. With an assembler the module is checked, and `kernels` learn their registers and spills; without one they stay as they are.
pub fn compile(module: &Module, kernels: &mut [KernelFacts], ptxas: Option<&Ptxas>) -> Result<String, NvidiaError> {
    match declared_sm(module) {
        Some(sm) if sm <= SM => {}
        declared => return Err(NvidiaError::TooNew { declared: declared.map_or("a GPU of its own".to_owned(), |sm| format!("sm_{sm}")) }),
    }
    let mut module = module.clone();
    if let Some(lowest) = lowest_version(&module).filter(|&lowest| declared_version(&module).is_some_and(|declared| lowest < declared)) {
        version::set_version(&mut module, lowest);
    }
    let text = atoll_ptx::print(&module);
    if let Some(ptxas) = ptxas {
        let report = ptxas.assemble(&text, ARCHITECTURE)?;
        for facts in kernels {
            let resources = report.kernels.get(&facts.name).ok_or_else(|| NvidiaError::NoKernel(facts.name.clone()))?;
            facts.registers = Some(resources.registers);
            facts.spill_bytes = Some(resources.spill_store_bytes.saturating_add(resources.spill_load_bytes));
        }
    }
    Ok(text)
}
