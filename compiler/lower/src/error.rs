//! Errors of reading and analysing a kernel.

use crate::limits::TooLarge;
use atoll_ptx::Name;

/// Why a kernel could not be lowered for a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The kernel is not well-formed PTX.
    #[error("kernel `{kernel}`, line {line}: {reason}")]
    Malformed {
        /// The kernel.
        kernel: Name,
        /// Source line; 0 for a statement that a pass has built.
        line: u32,
        /// What is wrong.
        reason: String,
    },
    /// The kernel uses something that the target does not support.
    #[error("kernel `{kernel}`, line {line}: the {target} target does not support {what}")]
    Unsupported {
        /// The name of the target.
        target: &'static str,
        /// The kernel.
        kernel: Name,
        /// Source line; 0 for a statement that a pass has built.
        line: u32,
        /// The instruction or construct.
        what: String,
    },
}

impl LowerError {
    /// The error for a kernel that exceeds a limit of the analyses.
    pub fn too_large(target: &'static str, kernel: &Name, error: TooLarge) -> LowerError {
        LowerError::Unsupported { target, kernel: kernel.clone(), line: 0, what: error.to_string() }
    }
}
