//! Checks of arguments.

use atoll_cuda_library::Status;
use std::ffi::c_int;

/// `cublasOperation_t`: whether a matrix is transposed. The conjugate of a real matrix is the matrix.
pub(crate) fn is_transposed(operation: c_int) -> Result<bool, Status> {
    match operation {
        0 | 3 => Ok(false),
        1 | 2 => Ok(true),
        _ => Err(Status::InvalidValue),
    }
}

/// Sizes of a call, none negative, as kernels get them.
pub(crate) fn sizes<const N: usize>(name: &'static str, sizes: [i64; N]) -> Result<[u32; N], Status> {
    if sizes.iter().any(|size| *size < 0) {
        return Err(Status::InvalidValue);
    }
    if sizes.iter().any(|size| *size > i64::from(i32::MAX)) {
        return Err(refused(name, "sizes above 2147483647"));
    }
    Ok(sizes.map(|size| size as u32))
}

/// The error for arguments that are not supported, which the library prints once for each name.
pub(crate) fn refused(name: &'static str, what: &str) -> Status {
    atoll_cuda_library::refused(name, what, "CUBLAS_STATUS_NOT_SUPPORTED")
}
