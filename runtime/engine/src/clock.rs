//! The monotonic clock. Devices use the same clock for the times of completions.

use atoll_core::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The current time.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A duration in the form of system calls.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Nanoseconds of a duration; `u64::MAX` (585 years) if it is longer.
pub(crate) fn saturating_nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
