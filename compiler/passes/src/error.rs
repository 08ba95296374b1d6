//! What can go wrong in the pipeline, and whose fault it is.

use crate::shared_error::SharedError;
use atoll_ptx::Faults;
use atoll_ptx::analysis::CfgError;

/// Why a module was not transformed. The module is then in an unspecified state.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The caller's PTX is not valid.
    #[error("the module is not valid PTX: {0}")]
    InvalidInput(Faults),
    /// The caller's PTX branches to nowhere.
    #[error("`{function}`: {source}")]
    BrokenFlow {
        /// The function.
        function: String,
        /// The branch.
        source: CfgError,
    },
    /// The kernel went through this pass before; transform the original.
    #[error("the kernel `{kernel}` has preemption parameters already")]
    AlreadyPreemptible {
        /// The kernel.
        kernel: String,
    },
    /// The kernel went through this pass before; transform the original.
    #[error("the kernel `{kernel}` has virtual thread and block numbers already")]
    AlreadyVirtual {
        /// The kernel.
        kernel: String,
    },
    /// The kernel went through this pass before; transform the original.
    #[error("the kernel `{kernel}` is fenced already")]
    AlreadyFenced {
        /// The kernel.
        kernel: String,
    },
    /// Nobody knows this pass.
    #[error("there is no pass `{name}`; there are {known}")]
    UnknownPass {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Shared memory is used in a way that cannot be moved.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// A bug of a pass: valid PTX went in and something else came out.
    #[error("bug in the pass `{pass}`: its output is not valid: {faults}")]
    InvalidOutput {
        /// The pass.
        pass: &'static str,
        /// What is wrong with it.
        faults: Faults,
    },
}
