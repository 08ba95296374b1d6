//! Results of calls.

use atoll_cuda_api::error;
use atoll_cuda_api::types::CUresult;

/// Why a call failed. Each library has a number for it in its own interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The handle is not valid, or there is no device.
    NotInitialized,
    /// Device memory cannot be allocated.
    AllocFailed,
    /// An argument is not valid.
    InvalidValue,
    /// The device cannot run the kernel.
    ArchMismatch,
    /// Memory cannot be copied.
    MappingError,
    /// The driver refused or failed to run the kernel.
    ExecutionFailed,
    /// A mistake in the library.
    InternalError,
    /// The function or its arguments are not supported.
    NotSupported,
}

impl Status {
    /// The error for an error of the driver.
    pub fn of_driver(result: CUresult) -> Status {
        match result {
            error::OUT_OF_MEMORY => Status::AllocFailed,
            error::NOT_INITIALIZED
            | error::DEINITIALIZED
            | error::NO_DEVICE
            | error::DEVICE_UNAVAILABLE
            | error::INVALID_CONTEXT
            | error::CONTEXT_IS_DESTROYED => Status::NotInitialized,
            error::INVALID_IMAGE | error::NO_BINARY_FOR_GPU | error::INVALID_PTX | error::UNSUPPORTED_PTX_VERSION => {
                Status::ArchMismatch
            }
            error::NOT_SUPPORTED => Status::NotSupported,
            _ => Status::ExecutionFailed,
        }
    }
}
