//! Kernels before the passes, from a model or from PTX files.

use atoll_kgraph::LaunchSpec;
use atoll_ptx::Module;

/// Kernels before the passes, and their launches.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) module: Module,
    /// Every kernel of the module, in order.
    pub(crate) kernels: Vec<LaunchedKernel>,
    /// One entry per graph node.
    pub(crate) launches: Vec<Option<LaunchSpec>>,
}

/// A kernel and its launch shape.
#[derive(Clone)]
pub(crate) struct LaunchedKernel {
    pub(crate) name: String,
    pub(crate) block: [u32; 3],
    /// In addition to the shared memory that the kernel declares.
    pub(crate) dynamic_shared_bytes: u32,
}

impl Kernels {
    /// The architecture that the kernels were written for, such as 80 for `sm_80`; 0 if it is
    /// architecture-specific, as `sm_90a` is.
    pub(crate) fn declared_sm(&self) -> u32 {
        atoll_target_nvidia::declared_sm(&self.module).unwrap_or(0)
    }
}
