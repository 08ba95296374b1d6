//! Errors of the pass pipeline.

use crate::shared_error::SharedError;
use atoll_ptx::Faults;
use atoll_ptx::analysis::CfgError;

/// Why a module was not transformed. The module is then in an unspecified state.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The input is not valid PTX.
    #[error("the module is not valid PTX: {0}")]
    InvalidInput(Faults),
    /// The input branches to a label that does not exist.
    #[error("`{function}`: {source}")]
    BrokenFlow {
        /// The function.
        function: String,
        /// The error of the control-flow graph.
        source: CfgError,
    },
    /// The kernel already went through this pass; transform the original.
    #[error("the kernel `{kernel}` already has preemption parameters; transform the original")]
    AlreadyPreemptible {
        /// The kernel.
        kernel: String,
    },
    /// The kernel already went through this pass; transform the original.
    #[error("the kernel `{kernel}` already has virtual thread and block indices; transform the original")]
    AlreadyVirtual {
        /// The kernel.
        kernel: String,
    },
    /// The kernel already went through this pass; transform the original.
    #[error("the kernel `{kernel}` is already fenced; transform the original")]
    AlreadyFenced {
        /// The kernel.
        kernel: String,
    },
    /// No pass has this name.
    #[error("unknown pass `{name}`; known passes: {known}")]
    UnknownPass {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// A use of shared memory that cannot be moved.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// A bug in a pass: valid PTX became invalid.
    #[error("bug in the pass `{pass}`: its output is not valid: {faults}")]
    InvalidOutput {
        /// The pass.
        pass: &'static str,
        /// The verifier's findings.
        faults: Faults,
    },
}
