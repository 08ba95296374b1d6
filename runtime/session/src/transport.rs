//! The connection of a client.

/// Error: the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the session's server is over: {0}")]
pub struct Lost(pub String);

/// A connection to a server, as a client sees it.
pub trait Transport {
    /// Sends all bytes.
    fn send(&mut self, bytes: &[u8]) -> Result<(), Lost>;

    /// Receives until the buffer is full.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Lost>;

    /// Receives bytes into the program's memory, which is the destination of a copy from the
    /// device.
    fn receive_to(&mut self, address: u64, bytes: u64) -> Result<(), Lost>;

    /// Prints a line for the user of the program.
    fn note(&mut self, _line: &str) {}
}
