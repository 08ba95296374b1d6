//! The destination of answers, and why a server ends a session.

use crate::field::WireError;
use crate::transport::Lost;

/// The destination of answers.
pub trait Output {
    /// Sends bytes at once, or together with later ones.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Lost>;
}

/// Why the server ends a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Bytes that are not valid records.
    #[error("the client sent invalid records: {0}")]
    Wire(#[from] WireError),
    /// A message was lost or sent twice.
    #[error("the client sent message {found} instead of {expected}")]
    Sequence {
        /// The next number.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// A copy to the host in a message that gets no answer.
    #[error("the client asked for a copy to the host in a message without an answer")]
    CopyWithoutAnswer,
    /// A stored function that is not valid, is not there, or exceeds what the session may have.
    #[error("the client's stored function {function} {why}")]
    Stored {
        /// Its number.
        function: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// The client has closed the connection.
    #[error(transparent)]
    Lost(#[from] Lost),
}
