//! How a model is compiled.

use crate::targets::Target;
use atoll_kgraph::{DiskCache, SizeRanges, States};
pub use atoll_passes::TransformOptions;
use std::sync::Arc;

/// How a model is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Targets of the bundle. None, for PTX that is packed, is this machine and the oldest NVIDIA
    /// architecture that runs it.
    pub targets: Vec<Target>,
    /// Put NVIDIA kernels through `ptxas`, where there is one: checks them, and records registers
    /// and spills. Takes seconds.
    pub assemble: bool,
    /// Which passes for preemption run. All of them, but to measure what they cost.
    pub passes: TransformOptions,
    /// Ranges of the model's named sizes.
    pub symbols: SizeRanges,
    /// The same for names that the model need not have.
    pub common_symbols: SizeRanges,
    /// Which inputs and outputs of the model are states.
    pub states: States,
    /// Where native code of kernels is kept and looked for.
    pub kernel_cache: Option<Arc<DiskCache>>,
}

impl Default for CompileOptions {
    /// Native code for this machine where there is LLVM, and PTX for every NVIDIA GPU from Turing
    /// on.
    fn default() -> CompileOptions {
        CompileOptions {
            targets: Target::defaults(),
            assemble: false,
            passes: TransformOptions::default(),
            symbols: SizeRanges::new(),
            common_symbols: SizeRanges::new(),
            states: States::None,
            kernel_cache: None,
        }
    }
}
