//! Compiler options.

use crate::targets::Target;
use atoll_kgraph::{DiskCache, SizeRanges, States};
use atoll_passes::FenceForm;
pub use atoll_passes::TransformOptions;
use std::sync::Arc;

/// The targets whose kernels get a fence, which bounds every access to the memory of one tenant.
/// Kernels for which that is impossible are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fences {
    /// None.
    #[default]
    None,
    /// All but those of NVIDIA GPUs, for daemons that keep the memory of tenants apart on other
    /// devices only.
    NotNvidia,
    /// All.
    All,
}

impl Fences {
    /// The form of the fence for a target; `None` if the target gets none.
    pub(crate) fn form(self, target: Target) -> Option<FenceForm> {
        match (self, target) {
            (Fences::None, _) | (Fences::NotNvidia, Target::Nvidia(_)) => None,
            (Fences::All, Target::Nvidia(_)) => Some(FenceForm::Exit),
            // A trap on these ends one launch.
            (Fences::NotNvidia | Fences::All, _) => Some(FenceForm::Trap),
        }
    }
}

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
    /// The targets whose kernels get a fence.
    pub fences: Fences,
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
            fences: Fences::None,
            kernel_cache: None,
        }
    }
}
