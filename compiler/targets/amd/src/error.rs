//! Errors of the AMD target.

use atoll_lower::LowerError;

/// Why a module could not be compiled for an AMD architecture.
#[derive(Debug, thiserror::Error)]
pub enum AmdError {
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
    /// The kernel needs more static shared memory than a block can have.
    #[error(
        "kernel `{kernel}` has {bytes} bytes of static shared memory; \
         a block has at most {limit} bytes on AMD GPUs: use smaller tiles"
    )]
    SharedMemory {
        /// The kernel.
        kernel: String,
        /// Its static shared memory.
        bytes: u32,
        /// The limit.
        limit: u32,
    },
    /// The kernel is malformed, or uses a feature that this target does not support.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// LLVM rejected the generated code: a bug of this crate.
    #[error("internal error: LLVM rejects the code generated for {kernels} on {architecture}: {message}")]
    Llvm {
        /// The kernels of the code object.
        kernels: String,
        /// The architecture.
        architecture: &'static str,
        /// LLVM's message.
        message: String,
    },
    /// This LLVM has no AMDGPU back end.
    #[error("this LLVM has no AMDGPU back end: {0}")]
    NoTarget(String),
    /// The linker is not installed.
    #[error(
        "`ld.lld`, which links code for AMD GPUs, was not found ({tried}); install LLVM's linker \
         (`apt-get install lld-22`), or name it in ATOLL_LLD"
    )]
    NoLinker {
        /// The places that were searched.
        tried: String,
    },
    /// The linker failed.
    #[error("`{linker}` failed: {message}")]
    Link {
        /// The program.
        linker: String,
        /// Its message.
        message: String,
    },
    /// A kernel needs resources that its proxy kernel does not have.
    #[error("kernel `{kernel}` cannot run in a proxy kernel: {reason}")]
    NotInProxy {
        /// The kernel.
        kernel: String,
        /// Its index among the requested kernels.
        index: usize,
        /// The resource.
        reason: String,
    },
    /// The metadata of the linked code object cannot be read: a bug of this crate, or a linker of
    /// another version.
    #[error("internal error: the code object cannot be read: {0}")]
    CodeObject(String),
}
