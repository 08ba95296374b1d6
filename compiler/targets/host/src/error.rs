//! Errors of the host target.

use atoll_lower::LowerError;

/// Why a module could not be compiled for the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The requested kernel is not in the module.
    #[error("the module has no kernel `{name}`; it has {available}")]
    NoSuchKernel {
        /// The requested name.
        name: String,
        /// The kernels of the module.
        available: String,
    },
    /// The requested block shape is not possible.
    #[error("kernel `{kernel}` cannot have blocks of {block:?} threads: {reason}")]
    BlockShape {
        /// The kernel.
        kernel: String,
        /// The shape.
        block: [u32; 3],
        /// The reason.
        reason: &'static str,
    },
    /// The kernel is malformed, or uses something that the host target does not support.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// LLVM rejected the generated code: a bug of this crate.
    #[error("internal error: LLVM rejects the code generated for `{kernel}`: {message}")]
    Llvm {
        /// The kernel, or the part of the object.
        kernel: String,
        /// LLVM's message.
        message: String,
    },
    /// This LLVM has no x86-64 backend.
    #[error("this LLVM has no x86-64 backend: {0}")]
    NoTarget(String),
    /// An object contains something that the linker does not support: a bug of this crate.
    #[error("internal error: the compiled kernels cannot be linked: {0}")]
    Link(String),
}
