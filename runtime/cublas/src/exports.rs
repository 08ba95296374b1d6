//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod copy;
mod gemm;
mod gemv;
mod info;
mod lt;
mod matrices;
mod missing;
mod settings;
mod vector;
mod vector_ex;

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
