//! Entry points.

use crate::status::Status;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an entry point: 0 if it succeeds, else the library's number of the error. A panic becomes an
/// internal error.
pub fn enter(number: fn(Status) -> c_int, body: impl FnOnce() -> Result<(), Status>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => number(status),
        Err(_) => number(Status::InternalError),
    }
}

/// Declares an entry point of C: the function that numbers errors, the name, the arguments, and a body
/// that returns `Result<(), Status>`.
#[macro_export]
macro_rules! entry_point {
    ($number:path; $(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        /// # Safety
        /// The arguments must be as the library's header requires; a pointer that is checked may be
        /// null.
        #[allow(non_snake_case, reason = "the names are those of the library's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the library's functions have")]
        #[allow(clippy::useless_conversion, reason = "integers have 32 or 64 bits")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::enter($number, move || -> Result<(), $crate::Status> { $body })
        }
    };
}

/// Declares the entry points of handles: the function that numbers errors, the library's handles, and the
/// names of the functions that create and destroy one, and that set and get its stream.
#[macro_export]
macro_rules! handle_entry_points {
    ($number:path; $handles:path; $create:ident $destroy:ident $($set_stream:ident $get_stream:ident)?) => {
        $crate::entry_point! { $number; $create(handle: $crate::At<$crate::HandleId>) {
            handle.is_wanted()?;
            handle.set($handles.create()?)
        } }

        $crate::entry_point! { $number; $destroy(handle: $crate::HandleId) {
            $handles.destroy(handle)
        } }

        $(
            $crate::entry_point! { $number; $set_stream(handle: $crate::HandleId, stream: $crate::CUstream) {
                $handles.state(handle, |state| state.stream = stream)
            } }

            $crate::entry_point! {
                $number; $get_stream(handle: $crate::HandleId, stream: $crate::At<$crate::CUstream>) {
                    let of_handle = $handles.state(handle, |state| state.stream)?;
                    stream.set(of_handle)
                }
            }
        )?
    };
}
