//! Lines on standard error. An error in writing is ignored: the program may have closed the stream.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints a line.
fn log(line: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "atoll: {line}");
}

/// Prints a line about a name, once for each name.
pub(crate) fn log_once(name: &'static str, line: &dyn std::fmt::Display) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        log(line);
    }
}
