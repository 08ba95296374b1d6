//! Results of calls: `cudnnStatus_t`. The numbers of cuDNN 8 and 9 differ.

use crate::version::version;
use atoll_cuda_library::Status;
use std::ffi::{CStr, c_int};

/// The name of the error for what is missing.
pub(crate) const NOT_SUPPORTED: &str = "CUDNN_STATUS_NOT_SUPPORTED";

/// The results: the numbers in cuDNN 8 and 9, and the name.
const STATUSES: &[(c_int, c_int, &CStr)] = &[
    (0, 0, c"CUDNN_STATUS_SUCCESS"),
    (1, 1001, c"CUDNN_STATUS_NOT_INITIALIZED"),
    (2, 4003, c"CUDNN_STATUS_ALLOC_FAILED"),
    (3, 2000, c"CUDNN_STATUS_BAD_PARAM"),
    (4, 4000, c"CUDNN_STATUS_INTERNAL_ERROR"),
    (5, 2001, c"CUDNN_STATUS_INVALID_VALUE"),
    (6, 3007, c"CUDNN_STATUS_ARCH_MISMATCH"),
    (7, 4006, c"CUDNN_STATUS_MAPPING_ERROR"),
    (8, 5000, c"CUDNN_STATUS_EXECUTION_FAILED"),
    (9, 3000, c"CUDNN_STATUS_NOT_SUPPORTED"),
    (10, 1005, c"CUDNN_STATUS_LICENSE_ERROR"),
    (11, 3008, c"CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING"),
    (12, 1006, c"CUDNN_STATUS_RUNTIME_IN_PROGRESS"),
    (13, 1007, c"CUDNN_STATUS_RUNTIME_FP_OVERFLOW"),
    (14, 1002, c"CUDNN_STATUS_VERSION_MISMATCH"),
];

/// The number of an error in the version that the program uses.
pub(crate) fn number(status: Status) -> c_int {
    number_in(status, version()[0])
}

fn number_in(status: Status, major: c_int) -> c_int {
    let (eight, nine) = match status {
        Status::NotInitialized => (1, 1001),
        Status::AllocFailed => (2, 4003),
        Status::InvalidValue => (3, 2000),
        Status::ArchMismatch => (6, 3007),
        Status::MappingError => (7, 4006),
        Status::ExecutionFailed => (8, 5000),
        Status::InternalError => (4, 4000),
        Status::NotSupported => (9, 3000),
    };
    if major == 8 { eight } else { nine }
}

/// The header's name of a result in the version that the program uses.
pub(crate) fn name(result: c_int) -> &'static CStr {
    let is_eight = version()[0] == 8;
    let row = STATUSES.iter().find(|(eight, nine, _)| result == if is_eight { *eight } else { *nine });
    row.map_or(c"unknown cuDNN status", |row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_name_in_both_versions() {
        for status in [
            Status::NotInitialized,
            Status::AllocFailed,
            Status::InvalidValue,
            Status::ArchMismatch,
            Status::MappingError,
            Status::ExecutionFailed,
            Status::InternalError,
            Status::NotSupported,
        ] {
            let pair = (number_in(status, 8), number_in(status, 9));
            assert!(STATUSES.iter().any(|(eight, nine, _)| (*eight, *nine) == pair), "{status:?}: {pair:?}");
        }
    }
}
