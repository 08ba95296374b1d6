//! Lines on standard error. A program may have closed it, which is no error here.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints a line.
pub(crate) fn log(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "atoll: {line}");
}

/// Prints once that an entry point is missing.
pub(crate) fn log_missing(name: &'static str) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        log(&format_args!("{name} is not part of sessions; it returns CUDA_ERROR_NOT_SUPPORTED"));
    }
}
