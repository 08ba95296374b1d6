//! Results of calls: `cublasStatus_t`.

use atoll_cuda_library::Status;
use std::ffi::{CStr, c_int};

/// The number of success.
pub(crate) const SUCCESS: c_int = 0;

/// The results: number, name and text.
const STATUSES: &[(c_int, &CStr, &CStr)] = &[
    (SUCCESS, c"CUBLAS_STATUS_SUCCESS", c"success"),
    (1, c"CUBLAS_STATUS_NOT_INITIALIZED", c"the handle is not valid, or there is no device"),
    (3, c"CUBLAS_STATUS_ALLOC_FAILED", c"device memory cannot be allocated"),
    (7, c"CUBLAS_STATUS_INVALID_VALUE", c"an argument is not valid"),
    (8, c"CUBLAS_STATUS_ARCH_MISMATCH", c"the device cannot run the kernel"),
    (11, c"CUBLAS_STATUS_MAPPING_ERROR", c"memory cannot be copied"),
    (13, c"CUBLAS_STATUS_EXECUTION_FAILED", c"the kernel failed"),
    (14, c"CUBLAS_STATUS_INTERNAL_ERROR", c"internal error"),
    (15, c"CUBLAS_STATUS_NOT_SUPPORTED", c"the function or its arguments are not supported"),
    (16, c"CUBLAS_STATUS_LICENSE_ERROR", c"license error"),
];

/// The header's number of an error.
pub(crate) fn number(status: Status) -> c_int {
    match status {
        Status::NotInitialized => 1,
        Status::AllocFailed => 3,
        Status::InvalidValue => 7,
        Status::ArchMismatch => 8,
        Status::MappingError => 11,
        Status::ExecutionFailed => 13,
        Status::InternalError => 14,
        Status::NotSupported => 15,
    }
}

/// The header's name of a result.
pub(crate) fn name(result: c_int) -> &'static CStr {
    row(result).map_or(c"unknown cuBLAS status", |row| row.1)
}

/// A text for a result.
pub(crate) fn text(result: c_int) -> &'static CStr {
    row(result).map_or(c"unknown cuBLAS status", |row| row.2)
}

fn row(result: c_int) -> Option<&'static (c_int, &'static CStr, &'static CStr)> {
    STATUSES.iter().find(|(number, _, _)| *number == result)
}
