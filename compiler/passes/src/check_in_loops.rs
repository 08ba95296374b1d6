//! Looks at the loops of a kernel for places where a running block may leave. It inserts no checks so far; what a loop would need is in the design (D5 f).

use crate::error::PassError;
use crate::options::PassOptions;
use atoll_ptx::Module;

/// What was done with a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopOutcome {
    /// It was left as it was.
    Skipped {
        /// The first line of the loop.
        line: u32,
        /// Why.
        why: LoopSkipped,
    },
}

/// Why a loop has no check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoopSkipped {}

/// The loops of one kernel.
pub(crate) struct KernelLoops {
    /// Byte offset of the appended parameters.
    pub(crate) params_offset: Option<u32>,
    /// What was done with each.
    pub(crate) loops: Vec<LoopOutcome>,
}

/// Says for each kernel, in order, what was done with its loops.
pub(crate) fn check_in_loops(module: &mut Module, _: &PassOptions) -> Result<Vec<KernelLoops>, PassError> {
    Ok(module.kernels().map(|_| KernelLoops { params_offset: None, loops: Vec::new() }).collect())
}
