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

/// Numbers of the driver's answers.
pub use atoll_cuda_api::error as status;

impl CudaError {
    /// Whether a kernel went wrong, of this process or of another that uses the GPU through MPS
    /// with it, or MPS ended what the process had. From then on every call in the context fails,
    /// and only another process can use the device.
    pub fn is_context_lost(&self) -> bool {
        matches!(self.code, 700 | 702 | 710 | 714..=719 | status::MPS_RPC_FAILURE | status::MPS_CLIENT_TERMINATED)
    }

    /// Whether there is not enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == status::OUT_OF_MEMORY
    }
}
