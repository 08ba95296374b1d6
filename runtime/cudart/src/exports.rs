//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod copy;
mod device;
mod error;
mod event;
mod launch;
mod memory;
mod missing;
mod register;
mod stream;
mod symbol;

use crate::error::Code;
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    /// The error that `cudaGetLastError` returns, 0 if there is none, and the value of [`RESETS`]
    /// when it occurred.
    static LAST: Cell<(c_int, u64)> = const { Cell::new((0, 0)) };
}

/// How often a device was reset.
static RESETS: AtomicU64 = AtomicU64::new(0);

/// Declares the entry points of a family. A body returns `Result<(), Code>`. The name after `also`
/// is that for programs with a default stream for each thread; here that stream is the one of the
/// process, which waits for more.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident $arguments:tt $(also $per_thread:ident)? $body:block)+) => {
        $(
            $crate::exports::entry_point! { $(#[$doc])* $name $arguments $body }
            $($crate::exports::entry_point! { $per_thread $arguments $body })?
        )+
    };
}
use entry_points;

/// Declares an entry point.
macro_rules! entry_point {
    ($(#[$doc:meta])* $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        /// # Safety
        /// The arguments must be as the runtime's header requires; a pointer that is checked may be
        /// null.
        #[allow(non_snake_case, reason = "the names are those of the runtime's symbols")]
        #[allow(clippy::too_many_arguments, reason = "as many as the runtime's functions have")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::exports::enter(move || -> Result<(), $crate::error::Code> { $body })
        }
    };
}
use entry_point;

/// Runs an entry point. A panic becomes an error code; an error is kept for `cudaGetLastError`.
fn enter(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    let code = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    };
    set_last(code.0);
    code.0
}

fn last() -> c_int {
    // While a thread ends there is none.
    LAST.try_with(Cell::get).map_or(0, |(code, _)| code)
}

/// Whether the last error of this thread stays: it is one that every later call returns, and no
/// thread has reset the device since.
fn does_last_stay() -> bool {
    LAST.try_with(Cell::get).is_ok_and(|(code, resets)| Code(code).is_sticky() && resets == RESETS.load(Relaxed))
}

fn set_last(code: c_int) {
    let _ = LAST.try_with(|last| last.set((code, RESETS.load(Relaxed))));
}

/// Forgets an error that would have stayed, after a device was reset. The other threads return
/// theirs once more.
fn clear_last() {
    RESETS.fetch_add(1, Relaxed);
    if Code(last()).is_sticky() {
        set_last(0);
    }
}
