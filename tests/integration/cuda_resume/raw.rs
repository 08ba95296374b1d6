//! A client of sessions over the network that speaks the protocol by hand.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// The version of the protocol.
pub(crate) const VERSION: u32 = 5;

/// Size in bytes of what the daemon sends first.
const PASS_BYTES: usize = 64;

/// What a client sends before the records: version and token, then the greeting.
pub(crate) fn entry(version: u32, token: &str) -> Vec<u8> {
    let hello = [b"ATOLLSES".as_slice(), &version.to_le_bytes(), &[0; 4], &[0; 8]].concat();
    [credentials(version, token), hello].concat()
}

fn credentials(version: u32, token: &str) -> Vec<u8> {
    let entry = [b"ATOLLNET".as_slice(), &version.to_le_bytes(), &(token.len() as u32).to_le_bytes()].concat();
    [entry, token.as_bytes().to_vec()].concat()
}

/// The head of a segment.
fn segment(kind: u32, bytes: usize, number: u64) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), &(bytes as u32).to_le_bytes(), &number.to_le_bytes()].concat()
}

/// A connection of a session.
pub(crate) struct Raw {
    stream: TcpStream,
    /// The session's number and secret.
    pub(crate) ticket: [u8; 40],
    /// Bytes of the client that the daemon had received when the connection began.
    pub(crate) had_received: u64,
    /// Bytes of the session that have arrived on this connection.
    pub(crate) received: Vec<u8>,
}

impl Raw {
    /// Begins a session, and reads its greeting.
    pub(crate) fn begin(address: &str, token: &str) -> Result<Raw> {
        let mut raw = Raw::connect(address, &entry(VERSION, token))?.map_err(anyhow::Error::msg)?;
        raw.read(40)?;
        ensure!(raw.received.starts_with(b"ATOLLSES") && raw.received[12..16] == [0; 4], "{:?}", raw.received);
        Ok(raw)
    }

    /// Continues a session of which this many bytes were received. The error is the daemon's text.
    pub(crate) fn resume(
        address: &str,
        token: &str,
        ticket: &[u8; 40],
        received: u64,
    ) -> Result<std::result::Result<Raw, String>> {
        let resume = [b"ATOLLRES".as_slice(), ticket, &received.to_le_bytes()].concat();
        Raw::connect(address, &[credentials(VERSION, token), resume].concat())
    }

    fn connect(address: &str, first: &[u8]) -> Result<std::result::Result<Raw, String>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(first)?;
        let mut magic = [0; 8];
        stream.read_exact(&mut magic)?;
        if magic != *b"ATOLLPAS" {
            let mut text = Vec::new();
            stream.read_to_end(&mut text)?;
            return Ok(Err(String::from_utf8_lossy(&text).into_owned()));
        }
        let mut pass = [0; PASS_BYTES - 8];
        stream.read_exact(&mut pass)?;
        let had_received = u64::from_le_bytes(pass[8..16].try_into()?);
        let ticket = pass[16..].try_into()?;
        let mut raw = Raw { stream, ticket, had_received, received: Vec::new() };
        // As `atoll run`, shows that the ticket has arrived.
        raw.acknowledge(0)?;
        Ok(Ok(raw))
    }

    /// Reads until this many bytes of the session have arrived. Answers no questions.
    pub(crate) fn read(&mut self, count: usize) -> Result<()> {
        while self.received.len() < count {
            let mut head = [0; 16];
            self.stream.read_exact(&mut head).context("a segment")?;
            let mut part = vec![0; u32::from_le_bytes(head[4..8].try_into()?) as usize];
            self.stream.read_exact(&mut part)?;
            self.received.extend(part);
            if head[0] == 3 {
                bail!("the session has ended after {} bytes", self.received.len());
            }
        }
        Ok(())
    }

    /// Sends bytes of the session, the first of which has this number.
    pub(crate) fn send(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(&[segment(0, bytes.len(), number), bytes.to_vec()].concat())?)
    }

    fn acknowledge(&mut self, number: u64) -> Result<()> {
        Ok(self.stream.write_all(&segment(1, 0, number))?)
    }

    /// Ends the session after this many bytes, and waits until the daemon closes the connection.
    pub(crate) fn end(mut self, number: u64) -> Result<()> {
        self.stream.write_all(&segment(3, 0, number))?;
        self.close()
    }

    /// Closes the connection, and waits until the daemon does as well.
    pub(crate) fn close(mut self) -> Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        // The daemon may reset the connection.
        let _ = self.stream.read_to_end(&mut Vec::new());
        Ok(())
    }
}
