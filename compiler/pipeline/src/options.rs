//! Compiler options.

use crate::targets::Target;
use atoll_kgraph::{DiskCache, SizeRanges, States};
pub use atoll_passes::TransformOptions;
use std::sync::Arc;

/// Options of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Targets of the bundle. For packed PTX, an empty list means this machine and the oldest
    /// NVIDIA architecture that can run the PTX.
    pub targets: Vec<Target>,
    /// Assemble NVIDIA kernels with `ptxas`, if installed: checks them, and records registers and
    /// spills. Takes seconds.
    pub assemble: bool,
    /// The passes to run. All by default; leave some out only to measure their cost.
    pub passes: TransformOptions,
    /// Ranges of the model's named sizes.
    pub symbols: SizeRanges,
    /// Ranges of named sizes that the model need not have.
    pub common_symbols: SizeRanges,
    /// The inputs and outputs of the model that form states.
    pub states: States,
    /// Bound every access of a kernel to the memory of its tenant, and refuse kernels for which
    /// that is impossible. For host targets only: the fence requires that the memory of a tenant is
    /// aligned to its size. The memory of a GPU is one range for all tenants.
    pub fence: bool,
    /// The cache for native code of kernels.
    pub kernel_cache: Option<Arc<DiskCache>>,
}

impl Default for CompileOptions {
    /// Native code for this machine, if built with LLVM, and PTX for all NVIDIA GPUs from Turing
    /// on.
    fn default() -> CompileOptions {
        CompileOptions {
            targets: Target::defaults(),
            assemble: false,
            passes: TransformOptions::default(),
            symbols: SizeRanges::new(),
            common_symbols: SizeRanges::new(),
            states: States::None,
            fence: false,
            kernel_cache: None,
        }
    }
}
