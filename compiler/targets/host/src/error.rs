//! What can go wrong, by whose fault it is.

use atoll_lower::LowerError;

/// Why a module could not be compiled for the host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The caller asked for a kernel that the module does not have.
    #[error("the module has no kernel `{name}`; it has {available}")]
    NoSuchKernel {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// The caller asked for a block shape that cannot be.
    #[error("kernel `{kernel}` cannot have blocks of {block:?} threads: {reason}")]
    BlockShape {
        /// The kernel.
        kernel: String,
        /// The shape.
        block: [u32; 3],
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kernel is not well-formed PTX, or uses something that the host target does not do (yet).
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// LLVM refused what we generated: our bug.
    #[error("internal error: LLVM refuses the code generated for `{kernel}`: {message}")]
    Llvm {
        /// The kernel, or the part of the object.
        kernel: String,
        /// LLVM's words.
        message: String,
    },
    /// This LLVM cannot produce code for the level.
    #[error("this LLVM has no x86-64 target: {0}")]
    NoTarget(String),
    /// What LLVM compiled holds what our linker does not know: our bug.
    #[error("internal error: the compiled kernels cannot be put together: {0}")]
    Link(String),
}
