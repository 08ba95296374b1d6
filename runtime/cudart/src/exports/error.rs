//! Names and texts of errors, and the last error of the thread.

use super::{does_last_stay, last, set_last};
use crate::error::texts;
use std::ffi::{c_char, c_int};

/// Returns the last error of this thread and clears it, unless the error is sticky.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> c_int {
    let code = last();
    if !does_last_stay() {
        set_last(0);
    }
    code
}

/// Returns the last error of this thread.
#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> c_int {
    last()
}

/// The header's name of an error.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: c_int) -> *const c_char {
    texts(code).map_or(c"unrecognized error code", |(name, _)| name).as_ptr()
}

/// The text of an error.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: c_int) -> *const c_char {
    texts(code).map_or(c"unrecognized error code", |(_, text)| text).as_ptr()
}
