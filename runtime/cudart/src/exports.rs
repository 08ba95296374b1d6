//! The entry points. Each family has a file; [`missing`] lists those that are not implemented.

mod copy;
mod device;
mod error;
mod event;
mod graph;
mod launch;
mod managed;
mod memory;
mod missing;
mod node;
mod pool;
mod register;
mod stream;
mod symbol;

use crate::error::Code;
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    /// The error that `cudaGetLastError` returns, or 0; and the value of [`RESETS`] when it
    /// occurred.
    static LAST: Cell<(c_int, u64)> = const { Cell::new((0, 0)) };
}

/// How many times a device was reset.
static RESETS: AtomicU64 = AtomicU64::new(0);

/// Declares the entry points of a family. A body returns `Result<(), Code>`. The name after `also`
/// is the one that programs with per-thread default streams call. Here that stream is the process's
/// default stream, which synchronizes with more streams than CUDA requires.
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
    // The thread-local value is gone while the thread ends.
    LAST.try_with(Cell::get).map_or(0, |(code, _)| code)
}

/// Whether the last error of this thread is sticky: every later call returns it, and no thread has
/// reset a device since it occurred.
fn does_last_stay() -> bool {
    LAST.try_with(Cell::get).is_ok_and(|(code, resets)| Code(code).is_sticky() && resets == RESETS.load(Relaxed))
}

fn set_last(code: c_int) {
    let _ = LAST.try_with(|last| last.set((code, RESETS.load(Relaxed))));
}

/// Clears a sticky error of this thread after a device was reset. Other threads return theirs once
/// more.
fn clear_last() {
    RESETS.fetch_add(1, Relaxed);
    if Code(last()).is_sticky() {
        set_last(0);
    }
}
