//! Lines on standard error. An error in writing is ignored: the program may have closed the stream.

use crate::status::Status;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Prints a line.
pub fn log(line: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "atoll: {line}");
}

/// Prints a line about a name, once for each name.
pub fn log_once(name: &'static str, line: &dyn Display) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        log(line);
    }
}

/// The error for an entry point that is not implemented, which prints its name once. `result` is the
/// name of the error in the library's header.
pub fn missing(name: &'static str, result: &str) -> Status {
    log_once(name, &format_args!("{name} is not supported; it returns {result}"));
    Status::NotSupported
}

/// The error for arguments that are not supported, printed once for each name of an entry point.
/// `result` is the name of the error in the library's header.
pub fn refused(name: &'static str, what: &str, result: &str) -> Status {
    log_once(name, &format_args!("{name}: {what} are not supported; it returns {result}"));
    Status::NotSupported
}
