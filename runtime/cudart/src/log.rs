//! Lines on standard error. A program may have closed it, which is no error here.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints a line.
pub(crate) fn log(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "atoll: {line}");
}

/// Prints a line about an entry point, once for each.
pub(crate) fn log_once(name: &'static str, line: &dyn std::fmt::Display) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        log(line);
    }
}
