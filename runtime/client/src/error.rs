//! What can go wrong between a client and a daemon.

use atoll_control::{Refusal, WireError};
use std::io;
use std::path::PathBuf;

/// Why a client has no answer, or none that it can use.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens there, or the system does not let us.
    #[error("cannot reach a daemon at {socket}: {source}; is `atoll serve` running with this control socket?")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection broke, or one side does not keep to the protocol.
    #[error("the connection to the daemon: {0}")]
    Wire(#[from] WireError),
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the connection before it answered")]
    Closed,
    /// The daemon answered something else than was asked.
    #[error("the daemon gave an answer to something else; use a client and a daemon of one release")]
    WrongAnswer,
    /// An answer has no such output.
    #[error("the answer has no output `{0}` of this kind")]
    NoOutput(String),
    /// A file of the caller's.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        ClientError::Wire(error.into())
    }
}
