//! Lines on standard error. An error in writing is ignored: the program may have closed the stream.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints a line.
pub(crate) fn log(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "atoll: {line}");
}

/// Prints that an entry point is missing, once for each.
pub(crate) fn log_missing(name: &'static str) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        log(&format_args!("{name} is not supported in sessions; it returns CUDA_ERROR_NOT_SUPPORTED"));
    }
}
