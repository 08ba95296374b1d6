//! Errors of files and of simulation set-ups.

use atoll_core::LaneError;
use atoll_core::tokens::ShareError;
use std::path::PathBuf;

/// Why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file is too large.
    #[error("{}: {bytes} bytes, at most {max} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest accepted size.
        max: u64,
    },
    /// A file is not the expected JSON.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The position and kind of the error.
        source: serde_json::Error,
    },
    /// A file has invalid contents.
    #[error("{}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The device cannot be divided into these lanes.
    #[error("the lanes: {0}")]
    Lane(LaneError),
    /// A share is for a client that the workload does not have.
    #[error("a share is for the client `{0}`, which is not in the workload")]
    UnknownClient(String),
    /// A client follows the calls of clients in a way that is not possible.
    #[error("{0}")]
    Dependency(String),
    /// A lane rejects a share.
    #[error("client `{client}`: {error}")]
    Share {
        /// The client.
        client: String,
        /// Why.
        error: ShareError,
    },
    /// A workload calls an unknown model.
    #[error("client `{client}` calls the model `{model}`, for which there is no profile; known are: {known}")]
    UnknownModel {
        /// The client.
        client: String,
        /// The model.
        model: String,
        /// The known models.
        known: String,
    },
}
