//! Errors of loading and launching kernels.

/// Why a kernel could not be loaded or launched.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The number of arguments is wrong.
    #[error("kernel `{entry}` takes {wanted} arguments ({signature}), but {given} are given")]
    ArgumentCount {
        /// The kernel.
        entry: String,
        /// Number of its parameters.
        wanted: usize,
        /// Number of arguments.
        given: usize,
        /// Its parameters as declared in PTX.
        signature: String,
    },
    /// The size of an argument does not match its parameter.
    #[error("argument {index} has {given} bytes, but parameter `{parameter}` takes {wanted}")]
    ArgumentSize {
        /// Index of the argument.
        index: usize,
        /// The parameter as declared in PTX.
        parameter: String,
        /// Size of the parameter.
        wanted: u64,
        /// Size of the argument.
        given: u64,
    },
    /// An argument refers to a buffer that does not exist, or to a position outside of it.
    #[error("argument {index} points to byte {offset} of buffer {buffer}, which does not exist")]
    NoSuchBuffer {
        /// Index of the argument.
        index: usize,
        /// Index of the buffer.
        buffer: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// The device cannot run the launch.
    #[error("cannot launch the kernel: {0}")]
    Launch(String),
    /// The fence does not support something that the kernel does.
    #[error("kernel `{entry}` cannot be fenced: {reason}")]
    NotFenced {
        /// The kernel.
        entry: String,
        /// The unsupported instruction and its position.
        reason: atoll_passes::NotFenced,
    },
    /// The host target refused the kernel.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] atoll_target_host::HostError),
    /// The AMD target refused the kernel.
    #[cfg(feature = "amd")]
    #[error(transparent)]
    Amd(#[from] atoll_target_amd::AmdError),
    /// The interpreter of AMD code cannot load the code object.
    #[cfg(feature = "amd")]
    #[error(transparent)]
    AmdCode(#[from] atoll_amd_interp::LoadError),
    /// The kernel failed in the interpreter of AMD code.
    #[cfg(feature = "amd")]
    #[error(transparent)]
    AmdRun(#[from] atoll_amd_interp::RunError),
    /// The interpreter refused the kernel.
    #[error(transparent)]
    Interp(#[from] atoll_interp::Refusal),
    /// The kernel failed in the interpreter.
    #[error(transparent)]
    Run(#[from] atoll_interp::RunError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] atoll_device::DeviceError),
    /// The kernel trapped, faulted, or exceeded the time limit.
    #[error("{fault}")]
    Fault {
        /// The cause and the position.
        fault: Box<atoll_device::Fault>,
        /// What the kernel printed before.
        printed: String,
    },
    /// The launch exceeded its timeout and cannot be aborted.
    #[error("kernel `{entry}` is still running after {seconds} s, and this device cannot abort it")]
    Stuck {
        /// The kernel.
        entry: String,
        /// Duration of the wait in seconds.
        seconds: u64,
    },
    /// The CPU is too old for native code.
    #[error("this CPU does not support x86-64-v3, which native code needs; use the interpreter")]
    NoNativeCode,
}
