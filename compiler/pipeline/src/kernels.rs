//! Kernels as they come to the passes, from a model or from PTX files.

use atoll_kgraph::LaunchSpec;
use atoll_ptx::Module;

/// Kernels as they are before the passes, and how they are launched.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) module: Module,
    /// Every kernel of the module, in its order.
    pub(crate) kernels: Vec<LaunchedKernel>,
    /// One entry per graph node.
    pub(crate) launches: Vec<Option<LaunchSpec>>,
}

/// A kernel, and the shape it is launched with.
#[derive(Clone)]
pub(crate) struct LaunchedKernel {
    pub(crate) name: String,
    pub(crate) block: [u32; 3],
    /// Beside what the kernel declares itself.
    pub(crate) dynamic_shared_bytes: u32,
}

impl Kernels {
    /// The architecture that the kernels were written for; 0 for a variant that no other runs.
    pub(crate) fn declared_sm(&self) -> u32 {
        atoll_target_nvidia::declared_sm(&self.module).unwrap_or(0)
    }
}
