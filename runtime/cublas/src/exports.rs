//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod copy;
mod gemm;
mod gemv;
mod info;
mod lt;
mod missing;
mod settings;
mod vector;

use crate::status::Status;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Declares the entry points of a family. A body returns `Result<(), Status>`. `Int` is `c_int`. The
/// name after `also` is the same entry point with 64-bit integers: there `Int` is `i64`.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident $arguments:tt $(also $wide:ident)? $body:block)+) => {
        $(
            const _: () = {
                #[allow(dead_code, reason = "not all entry points have integers")]
                type Int = std::ffi::c_int;
                $crate::exports::entry_point! { $(#[$doc])* $name $arguments $body }
            };
            $(const _: () = {
                #[allow(dead_code, reason = "not all entry points have integers")]
                type Int = i64;
                $crate::exports::entry_point! { $wide $arguments $body }
            };)?
        )+
    };
}
use entry_points;

/// Declares an entry point.
macro_rules! entry_point {
    ($(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        /// # Safety
        /// The arguments must be as the header of cuBLAS requires; a pointer that is checked may be
        /// null.
        #[allow(non_snake_case, reason = "the names are those of cuBLAS's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the functions of cuBLAS have")]
        #[allow(clippy::useless_conversion, reason = "integers have 32 or 64 bits")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::exports::enter(move || -> Result<(), $crate::status::Status> { $body })
        }
    };
}
use entry_point;

/// Runs an entry point. A panic becomes an error.
fn enter(body: impl FnOnce() -> Result<(), Status>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS.0,
        Ok(Err(status)) => status.0,
        Err(_) => Status::INTERNAL_ERROR.0,
    }
}

/// `cublasOperation_t`: whether a matrix is transposed. The conjugate of a real matrix is the matrix.
pub(crate) fn is_transposed(operation: c_int) -> Result<bool, Status> {
    match operation {
        0 | 3 => Ok(false),
        1 | 2 => Ok(true),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Sizes of a call, none negative, as kernels get them.
fn sizes<const N: usize>(name: &'static str, sizes: [i64; N]) -> Result<[u32; N], Status> {
    if sizes.iter().any(|size| *size < 0) {
        return Err(Status::INVALID_VALUE);
    }
    if sizes.iter().any(|size| *size > i32::MAX.into()) {
        return Err(refused(name, "sizes above 2147483647"));
    }
    Ok(sizes.map(|size| size as u32))
}

/// The error for arguments that are not supported, which the library prints once for each name.
pub(crate) fn refused(name: &'static str, what: &str) -> Status {
    crate::log::log_once(
        name,
        &format_args!("{name}: {what} are not supported; it returns CUBLAS_STATUS_NOT_SUPPORTED"),
    );
    Status::NOT_SUPPORTED
}
