//! The NVIDIA target: PTX text is the code, and the driver assembles it (design D1). No LLVM.

mod ptxas;
mod version;

pub use ptxas::{AssembleError, AssembleReport, KernelResources, Ptxas, find_ptxas};
pub use version::{PtxVersion, declared_version, lowest_version};
