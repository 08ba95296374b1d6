//! What is said beside answers.

use std::fmt::Display;
use std::io::Write;

/// Tells whoever runs the tests.
pub(crate) fn say(what: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "stand-in CUDA driver: {what}");
}
