//! Errors of driver calls.

/// A driver call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    /// The driver function.
    pub call: &'static str,
    /// The driver's error number.
    pub code: i32,
    /// The driver's name of the error.
    pub name: String,
}

/// Error numbers of the driver.
pub use atoll_cuda_api::error as status;

impl CudaError {
    /// Whether the context is lost: a kernel faulted, of this process or of another MPS client, or
    /// MPS terminated this client. All later calls in the context fail, and only a new process can
    /// use the device.
    pub fn is_context_lost(&self) -> bool {
        matches!(self.code, 700 | 702 | 710 | 714..=719 | status::MPS_RPC_FAILURE | status::MPS_CLIENT_TERMINATED)
    }

    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == status::OUT_OF_MEMORY
    }
}
