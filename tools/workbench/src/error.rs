//! What can go wrong, and whose fault it is.

/// Why a kernel could not be loaded or launched.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Too few or too many arguments.
    #[error("kernel `{entry}` takes {wanted} arguments ({signature}), {given} are given")]
    ArgumentCount {
        /// The kernel.
        entry: String,
        /// Parameters it has.
        wanted: usize,
        /// Arguments there are.
        given: usize,
        /// Its parameters as PTX declares them.
        signature: String,
    },
    /// An argument that does not fit its parameter.
    #[error("argument {index} has {given} bytes, parameter `{parameter}` takes {wanted}")]
    ArgumentSize {
        /// From 0.
        index: usize,
        /// The parameter, as PTX declares it.
        parameter: String,
        /// Its size.
        wanted: u64,
        /// Size of the argument.
        given: u64,
    },
    /// An argument names a buffer that is not there, or a place outside it.
    #[error("argument {index} points to byte {offset} of buffer {buffer}, which does not exist")]
    NoSuchBuffer {
        /// From 0.
        index: usize,
        /// Index of the buffer.
        buffer: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// The launch is not possible on this device.
    #[error("the launch is not possible: {0}")]
    Launch(String),
    /// The fence has no rule for something that the kernel does.
    #[error("kernel `{entry}` cannot be fenced: {reason}")]
    NotFenced {
        /// The kernel.
        entry: String,
        /// What cannot be bounded, and where.
        reason: atoll_passes::NotFenced,
    },
    /// The host target refused the kernel.
    #[cfg(feature = "host")]
    #[error(transparent)]
    Host(#[from] atoll_target_host::HostError),
    /// The interpreter refused the kernel.
    #[error(transparent)]
    Interp(#[from] atoll_interp::Refusal),
    /// The kernel ended early in the interpreter.
    #[error(transparent)]
    Run(#[from] atoll_interp::RunError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] atoll_device::DeviceError),
    /// The kernel trapped, faulted or ran too long.
    #[error("{fault}")]
    Fault {
        /// What happened, and where.
        fault: Box<atoll_device::Fault>,
        /// What the kernel had printed.
        printed: String,
    },
    /// The launch does not end.
    #[error("kernel `{entry}` has not ended after {seconds} s, and this device cannot stop it")]
    Stuck {
        /// The kernel.
        entry: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// This machine cannot run native code.
    #[error("this CPU is below x86-64-v3, no native code is made for it; use the interpreter")]
    NoNativeCode,
}
