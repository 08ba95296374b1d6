//! What can be wrong with files and what is asked of a simulation.

use atoll_core::LaneError;
use std::path::PathBuf;

/// Why something cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is larger than anything of its kind.
    #[error("{}: {bytes} bytes, at most {max} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What is read at most.
        max: u64,
    },
    /// A file is not the JSON it should be.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// A file says something that makes no sense.
    #[error("{}: {what}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What.
        what: String,
    },
    /// The device cannot be divided so.
    #[error("the lanes: {0}")]
    Lane(LaneError),
    /// A workload names a model that was not given.
    #[error("client `{client}` calls the model `{model}`, for which there is no profile; known are: {known}")]
    UnknownModel {
        /// The client.
        client: String,
        /// The model.
        model: String,
        /// What there is.
        known: String,
    },
}
