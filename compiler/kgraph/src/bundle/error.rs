//! Why a bundle cannot be used.

use crate::graph::{FORMAT_VERSION, FORMAT_VERSION_MIN};
use crate::validate::Invalid;
use std::io;
use std::path::PathBuf;

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is no bundle, or it was damaged.
    #[error("{path} is not a usable bundle: {reason}; compile the model again with `atoll compile`")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// Another Atoll wrote it, in a format that this one does not know.
    #[error(
        "{path} has bundle format {found}, this Atoll reads formats {FORMAT_VERSION_MIN} to {FORMAT_VERSION}; use the Atoll that wrote it, or compile the model again with this one"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The graph or a target contradicts itself.
    #[error("{path} holds an invalid graph: {source}; compile the model again with `atoll compile`")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Invalid,
    },
}

impl BundleError {
    /// The same about the bytes of a bundle, for somebody to whom the name of this copy means
    /// nothing. What the system answers about the copy keeps its name.
    pub fn about(self, file: &str) -> BundleError {
        let path = PathBuf::from(file);
        match self {
            BundleError::Io { .. } => self,
            BundleError::Corrupt { reason, .. } => BundleError::Corrupt { path, reason },
            BundleError::UnknownFormat { found, .. } => BundleError::UnknownFormat { path, found },
            BundleError::Invalid { source, .. } => BundleError::Invalid { path, source },
        }
    }
}
