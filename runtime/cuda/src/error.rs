//! What the driver answers when it refuses.

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    /// The call.
    pub call: &'static str,
    /// The driver's number.
    pub code: i32,
    /// The driver's name of it.
    pub name: String,
}

/// Numbers of the driver's answers, as in `cuda.h`, that somebody here asks for.
pub mod status {
    /// `CUDA_ERROR_OUT_OF_MEMORY`
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE`: its mode keeps others out.
    pub const DEVICE_UNAVAILABLE: i32 = 46;
    /// `CUDA_ERROR_NO_DEVICE`
    pub const NO_DEVICE: i32 = 100;
    /// `CUDA_ERROR_INVALID_DEVICE`
    pub const INVALID_DEVICE: i32 = 101;
    /// `CUDA_ERROR_NO_BINARY_FOR_GPU`
    pub const NO_BINARY_FOR_GPU: i32 = 209;
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`
    pub const UNSUPPORTED_PTX_VERSION: i32 = 222;
    /// `CUDA_ERROR_NOT_READY`
    pub const NOT_READY: i32 = 600;
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// `CUDA_ERROR_ASSERT`
    pub const ASSERT: i32 = 710;
    /// `CUDA_ERROR_ILLEGAL_INSTRUCTION`
    pub const ILLEGAL_INSTRUCTION: i32 = 715;
    /// `CUDA_ERROR_MISALIGNED_ADDRESS`
    pub const MISALIGNED_ADDRESS: i32 = 716;
    /// `CUDA_ERROR_LAUNCH_FAILED`: also what `trap` leaves.
    pub const LAUNCH_FAILED: i32 = 719;
    /// `CUDA_ERROR_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: i32 = 801;
    /// `CUDA_ERROR_MPS_RPC_FAILURE`: the server of MPS does not answer any more.
    pub const MPS_RPC_FAILURE: i32 = 806;
    /// `CUDA_ERROR_MPS_CLIENT_TERMINATED`
    pub const MPS_CLIENT_TERMINATED: i32 = 810;
    /// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`
    pub const SYSTEM_DRIVER_MISMATCH: i32 = 803;
}

impl CudaError {
    /// Whether a kernel went wrong, of this process or of another that uses the GPU through MPS with it, or MPS ended what the process had. From then on every call in the context fails, and only another
    /// process can use the device.
    pub fn is_context_lost(&self) -> bool {
        matches!(self.code, 700 | 702 | 710 | 714..=719 | status::MPS_RPC_FAILURE | status::MPS_CLIENT_TERMINATED)
    }

    /// Whether there is not enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == status::OUT_OF_MEMORY
    }
}
