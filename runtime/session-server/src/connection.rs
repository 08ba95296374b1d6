//! Connected sockets, and the buffer of answers.

use atoll_session::{Lost, Output};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Capacity of the buffer of answers in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// A connected socket.
#[derive(Debug)]
pub enum Connection {
    /// A Unix socket.
    Unix(UnixStream),
    /// A TCP connection.
    Tcp(TcpStream),
}

impl Connection {
    pub(crate) fn try_clone(&self) -> io::Result<Connection> {
        Ok(match self {
            Connection::Unix(stream) => Connection::Unix(stream.try_clone()?),
            Connection::Tcp(stream) => Connection::Tcp(stream.try_clone()?),
        })
    }

    /// Closes the connection in both directions.
    pub(crate) fn shutdown(&self) {
        // The client may have closed it already.
        let _ = match self {
            Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub(crate) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Connection::Unix(stream) => stream.set_read_timeout(time),
            Connection::Tcp(stream) => stream.set_read_timeout(time),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.read(bytes),
            Connection::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => stream.write(bytes),
            Connection::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The buffer of answers to a client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    connection: Connection,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub(crate) fn new(connection: Connection) -> Outgoing {
        Outgoing { connection, buffer: Vec::new() }
    }

    /// Sends the contents of the buffer.
    pub(crate) fn flush(&mut self) -> Result<(), Lost> {
        let sent = self.connection.write_all(&self.buffer);
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
        self.connection.write_all(bytes).map_err(|error| Lost(error.to_string()))
    }
}
