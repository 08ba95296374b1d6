//! Messages on standard error.

use std::fmt::Display;
use std::io::Write;

/// Writes a message to standard error.
pub(crate) fn log(what: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "stand-in CUDA driver: {what}");
}
