//! Errors of opening and writing bundles.

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
        /// The error of the operating system.
        source: io::Error,
    },
    /// It is not a bundle, or it is damaged.
    #[error("{path} is not a usable bundle: {reason}; compile the model again with `atoll compile`")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The bundle has a format that this version of Atoll cannot read.
    #[error(
        "{path} has bundle format {found}, this Atoll reads formats {FORMAT_VERSION_MIN} to {FORMAT_VERSION}; \
         use the Atoll that wrote it, or compile the model again with this one"
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
    },
    /// The graph or a target is inconsistent.
    #[error("{path} holds an invalid graph: {source}; compile the model again with `atoll compile`")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Invalid,
    },
}

impl BundleError {
    /// Replaces the file name in the error, for readers who do not know the name of this copy of
    /// the bundle. An I/O error keeps its path, because it is about the copy.
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
