//! Results of calls.

use atoll_cuda_api::error;
use atoll_cuda_api::types::CUresult;
use std::ffi::{CStr, c_int};

/// An error of cuBLAS, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) c_int);

/// Declares results: the header's name without `CUBLAS_STATUS_`, the number, and a text.
macro_rules! statuses {
    ($($name:ident = $number:literal $full:literal $text:literal;)+) => {
        #[allow(dead_code, reason = "the list is that of the header")]
        impl Status {
            $(pub(crate) const $name: Status = Status($number);)+
        }

        /// The results: number, name and text.
        const STATUSES: &[(c_int, &CStr, &CStr)] = &[$(($number, $full, $text)),+];
    };
}

statuses! {
    SUCCESS = 0 c"CUBLAS_STATUS_SUCCESS" c"success";
    NOT_INITIALIZED = 1 c"CUBLAS_STATUS_NOT_INITIALIZED" c"the handle is not valid, or there is no device";
    ALLOC_FAILED = 3 c"CUBLAS_STATUS_ALLOC_FAILED" c"device memory cannot be allocated";
    INVALID_VALUE = 7 c"CUBLAS_STATUS_INVALID_VALUE" c"an argument is not valid";
    ARCH_MISMATCH = 8 c"CUBLAS_STATUS_ARCH_MISMATCH" c"the device cannot run the kernel";
    MAPPING_ERROR = 11 c"CUBLAS_STATUS_MAPPING_ERROR" c"memory cannot be copied";
    EXECUTION_FAILED = 13 c"CUBLAS_STATUS_EXECUTION_FAILED" c"the kernel failed";
    INTERNAL_ERROR = 14 c"CUBLAS_STATUS_INTERNAL_ERROR" c"internal error";
    NOT_SUPPORTED = 15 c"CUBLAS_STATUS_NOT_SUPPORTED" c"the function or its arguments are not supported";
    LICENSE_ERROR = 16 c"CUBLAS_STATUS_LICENSE_ERROR" c"license error";
}

impl Status {
    /// The error for an error of the driver.
    pub(crate) fn of_driver(result: CUresult) -> Status {
        match result {
            error::OUT_OF_MEMORY => Status::ALLOC_FAILED,
            error::NOT_INITIALIZED
            | error::DEINITIALIZED
            | error::NO_DEVICE
            | error::DEVICE_UNAVAILABLE
            | error::INVALID_CONTEXT
            | error::CONTEXT_IS_DESTROYED => Status::NOT_INITIALIZED,
            error::INVALID_IMAGE | error::NO_BINARY_FOR_GPU | error::INVALID_PTX | error::UNSUPPORTED_PTX_VERSION => {
                Status::ARCH_MISMATCH
            }
            error::NOT_SUPPORTED => Status::NOT_SUPPORTED,
            _ => Status::EXECUTION_FAILED,
        }
    }

    /// The header's name.
    pub(crate) fn name(self) -> &'static CStr {
        self.row().map_or(c"unknown cuBLAS status", |row| row.1)
    }

    /// A text.
    pub(crate) fn text(self) -> &'static CStr {
        self.row().map_or(c"unknown cuBLAS status", |row| row.2)
    }

    fn row(self) -> Option<&'static (c_int, &'static CStr, &'static CStr)> {
        STATUSES.iter().find(|(number, _, _)| *number == self.0)
    }
}
