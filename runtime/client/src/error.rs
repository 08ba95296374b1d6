//! Errors of the client.

use atoll_control::{Refusal, WireError};
use atoll_ring::RingError;
use std::io;
use std::path::PathBuf;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens on the socket, or the system denies access.
    #[error("cannot reach a daemon at {socket}: {source}; is `atoll serve` running with this control socket?")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The daemon refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection failed, or one side violated the protocol.
    #[error("the connection to the daemon failed: {0}")]
    Wire(#[from] WireError),
    /// The daemon closed the connection before it answered.
    #[error("the daemon closed the connection before it answered")]
    Closed,
    /// The client stopped waiting ([`crate::Client::watch`]), and closed the connection.
    #[error("the client stopped waiting for the answer and closed the connection")]
    Interrupted,
    /// The daemon's answer does not match the request.
    #[error("the daemon's answer does not match the request; use a client and a daemon of the same release")]
    WrongAnswer,
    /// The answer has no such output.
    #[error("the answer has no output `{0}` of this kind")]
    NoOutput(String),
    /// A request for a ring does not fit a slot, a ticket has no request, or a limit is no number.
    #[error("{0}")]
    Call(String),
    /// All slots of a ring are in use.
    #[error("all {0} slots of the ring are in use; receive an answer first, or open the ring with more slots")]
    RingFull(usize),
    /// The inputs of a request are larger than its slot's part of the arena.
    #[error(
        "the inputs have {needed} bytes, and a slot of the ring has room for {room}; open the ring with a larger arena"
    )]
    NoRoom {
        /// Bytes of the inputs.
        needed: u64,
        /// Bytes of a slot.
        room: u64,
    },
    /// The ring cannot be used any more.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A file of the caller cannot be read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        ClientError::Wire(error.into())
    }
}
