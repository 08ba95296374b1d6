//! The entry points, which check every pointer and handle once.
//!
//! The table of `runtime/hip-api` defines the entry points and their parameters; the exports are
//! generated from it. Each family has a file with implementations: associated functions of
//! [`StandIn`] named like the symbol. A row without an implementation returns
//! `hipErrorNotSupported` and is listed in [`NOT_IMPLEMENTED`].

mod device;
mod memory;
mod module;
mod stream;

use crate::status::{Status, texts};
use atoll_hip_api::ENTRY_POINTS;
use atoll_hip_api::types::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The last error of a call on this thread.
    static LAST: Cell<hipError_t> = const { Cell::new(0) };
}

/// Its associated functions are the implementations of entry points.
struct StandIn;

/// Declares the implementations of a family's entry points, and a list of their names. Pointers are
/// as the program passes them: null, or valid as AMD's reference requires.
macro_rules! entry_points {
    ($list:ident: $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)+) => {
        #[allow(non_snake_case, reason = "the names are those of the library's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the library's functions have")]
        impl $crate::exports::StandIn {
            $(
                /// # Safety
                /// Pointers must be as the library's reference requires.
                pub(super) unsafe fn $name($($argument: $type),*) -> Result<(), Status> $body
            )+
        }

        /// The entry points that this file implements.
        pub(super) const $list: &[&str] = &[$(stringify!($name)),+];
    };
}
use entry_points;

/// The implemented entry points.
const IMPLEMENTED: [&[&str]; 4] = [device::DEVICE, memory::MEMORY, module::MODULE, stream::STREAM];

/// Entry points that are not implemented: they return `hipErrorNotSupported`.
const NOT_IMPLEMENTED: &[&str] = &["hipDeviceReset", "hipStreamCreateWithWindowSize", "hipStreamClearQueue"];

/// Generates the exports, and default implementations that return an error.
macro_rules! exports {
    ($($since:literal fn $name:ident($($argument:ident: $type:ty),*);)+) => {
        /// The default implementations, for entry points without an associated function of
        /// [`StandIn`]. An associated function takes precedence over a trait's.
        #[allow(dead_code, non_snake_case, reason = "it has all entry points, under the library's names")]
        #[allow(clippy::too_many_arguments, reason = "as many as the library's functions have")]
        trait NotImplemented {
            $(
                /// # Safety
                /// It uses no argument.
                unsafe fn $name($(_: $type),*) -> Result<(), Status> {
                    Err(Status::NotSupported)
                }
            )+
        }

        impl NotImplemented for StandIn {}

        $(
            /// # Safety
            /// The arguments must be as the library's reference requires; a pointer that is checked
            /// may be null.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the name is that of the library's symbol")]
            #[allow(clippy::too_many_arguments, reason = "as many as the library's function has")]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> hipError_t {
                // SAFETY: the caller guarantees what the implementation requires.
                enter(move || unsafe { StandIn::$name($($argument),*) })
            }
        )+
    };
}
atoll_hip_api::for_each_entry_point!(exports);

/// # Safety
/// It takes no pointer.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is that of the library's symbol")]
pub(crate) unsafe extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    texts(error).0.as_ptr().cast()
}

/// # Safety
/// It takes no pointer.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is that of the library's symbol")]
pub(crate) unsafe extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    texts(error).1.as_ptr().cast()
}

/// Whether a list contains a name.
const fn has(list: &[&str], name: &str) -> bool {
    let mut index = 0;
    while index < list.len() {
        if is_same(list[index].as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

// Each row of the table is either implemented or listed as not implemented.
const _: () = {
    let mut row = 0;
    while row < ENTRY_POINTS.len() {
        let symbol = ENTRY_POINTS[row].symbol;
        let (mut family, mut implemented) = (0, false);
        while family < IMPLEMENTED.len() {
            implemented |= has(IMPLEMENTED[family], symbol);
            family += 1;
        }
        if implemented == has(NOT_IMPLEMENTED, symbol) {
            panic!("{}", symbol);
        }
        row += 1;
    }
};

/// Runs an entry point. A panic becomes an error and does not unwind into the program.
fn enter(body: impl FnOnce() -> Result<(), Status>) -> hipError_t {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Status::Unknown));
    let Err(status) = outcome else { return 0 };
    if status != Status::NotReady {
        LAST.set(status as hipError_t);
    }
    status as hipError_t
}

/// Returns the last error of this thread and clears it.
fn take_last_error() -> Result<(), Status> {
    match LAST.replace(0) {
        0 => Ok(()),
        code => Err(Status::of_number(code)),
    }
}

/// Writes a result; null is an error.
///
/// # Safety
/// The pointer must be null or the address of a value.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: as the caller guarantees.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads a value; null is an error.
///
/// # Safety
/// The pointer must be null or the address of as many values as `index` needs.
unsafe fn at<T: Copy>(from: *const T, index: usize) -> Result<T, Status> {
    if from.is_null() {
        return Err(Status::InvalidValue);
    }
    // SAFETY: as the caller guarantees.
    Ok(unsafe { from.add(index).read_unaligned() })
}
