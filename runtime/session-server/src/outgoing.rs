//! The buffer of answers.

use atoll_session::{Lost, Output};
use std::io::Write;
use std::os::unix::net::UnixStream;

/// Capacity of the buffer of answers in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The buffer of answers to a client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub(crate) fn new(stream: UnixStream) -> Outgoing {
        Outgoing { stream, buffer: Vec::new() }
    }

    /// Sends the contents of the buffer.
    pub(crate) fn flush(&mut self) -> Result<(), Lost> {
        let sent = self.stream.write_all(&self.buffer);
        self.buffer.clear();
        sent.map_err(|error| Lost(error.to_string()))
    }
}

impl Output for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Lost> {
        if self.buffer.len() + bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush()?;
        self.stream.write_all(bytes).map_err(|error| Lost(error.to_string()))
    }
}
