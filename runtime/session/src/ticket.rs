//! Frames of a session over the network that can be resumed: the ticket, the server's pass, and the
//! client's request to resume. Each has a fixed size.

use crate::field::{Field, Reader, WireError};
use crate::frame::check_magic;
use std::fmt;

/// First bytes of [`Pass`].
pub const PASS_MAGIC: [u8; 8] = *b"ATOLLPAS";
/// First bytes of [`Resume`].
pub const RESUME_MAGIC: [u8; 8] = *b"ATOLLRES";

/// Size of a ticket's secret in bytes.
pub const SECRET_BYTES: usize = 32;
/// Size of [`Pass`] in bytes.
pub const PASS_BYTES: usize = 64;
/// Size of [`Resume`] in bytes.
pub const RESUME_BYTES: usize = 56;

/// Authorizes a client to resume a session on another connection. It has no `==`: the server compares
/// secrets in constant time.
#[derive(Clone, Copy)]
pub struct Ticket {
    /// The number of the session.
    pub number: u64,
    /// Random bytes.
    pub secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A log must not contain the secret.
        f.debug_struct("Ticket").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The server's first message on a connection of a session, new or resumed.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The version of the server's protocol.
    pub version: u32,
    /// How long the server keeps the session without a connection, in milliseconds; 0 if the
    /// session ends with its connection.
    pub keep_ms: u32,
    /// Number of the client's bytes that the server has received. The client sends from there.
    pub received: u64,
    /// The session's ticket.
    pub ticket: Ticket,
}

impl Pass {
    /// Encodes the pass.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = PASS_MAGIC.to_vec();
        self.version.write(&mut bytes);
        self.keep_ms.write(&mut bytes);
        self.received.write(&mut bytes);
        self.ticket.number.write(&mut bytes);
        self.ticket.secret.write(&mut bytes);
        bytes
    }

    /// Decodes a pass.
    pub fn read(bytes: &[u8; PASS_BYTES]) -> Result<Pass, WireError> {
        let mut reader = Reader::new(bytes);
        check_magic(reader.get()?, PASS_MAGIC)?;
        let (version, keep_ms, received) = (reader.get()?, reader.get()?, reader.get()?);
        Ok(Pass { version, keep_ms, received, ticket: ticket(&mut reader)? })
    }
}

/// Sent by a client after its token, instead of a greeting, to resume a session.
#[derive(Clone, Copy, Debug)]
pub struct Resume {
    /// The ticket of the session.
    pub ticket: Ticket,
    /// Number of the server's bytes that the client has received. The server sends from there.
    pub received: u64,
}

impl Resume {
    /// Encodes the request.
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = RESUME_MAGIC.to_vec();
        self.ticket.number.write(&mut bytes);
        self.ticket.secret.write(&mut bytes);
        self.received.write(&mut bytes);
        bytes
    }

    /// Decodes a request.
    pub fn read(bytes: &[u8; RESUME_BYTES]) -> Result<Resume, WireError> {
        let mut reader = Reader::new(bytes);
        check_magic(reader.get()?, RESUME_MAGIC)?;
        Ok(Resume { ticket: ticket(&mut reader)?, received: reader.get()? })
    }
}

fn ticket(reader: &mut Reader<'_>) -> Result<Ticket, WireError> {
    Ok(Ticket { number: reader.get()?, secret: reader.get()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_their_sizes_and_are_read_as_written() {
        let ticket = Ticket { number: 7, secret: std::array::from_fn(|at| at as u8) };
        let pass = Pass { version: 3, keep_ms: 30_000, received: 1 << 40, ticket };
        let bytes: [u8; PASS_BYTES] = pass.write().try_into().expect("its size");
        let read = Pass::read(&bytes).expect("a pass");
        assert_eq!((read.version, read.keep_ms, read.received), (3, 30_000, 1 << 40));
        assert_eq!((read.ticket.number, read.ticket.secret), (7, ticket.secret));
        let resume = Resume { ticket, received: 9 };
        let bytes: [u8; RESUME_BYTES] = resume.write().try_into().expect("its size");
        let read = Resume::read(&bytes).expect("a request");
        assert_eq!((read.received, read.ticket.number, read.ticket.secret), (9, 7, ticket.secret));
        assert!(Pass::read(&[0; PASS_BYTES]).is_err() && Resume::read(&[0; RESUME_BYTES]).is_err());
        assert_eq!(format!("{ticket:?}"), "Ticket { number: 7, .. }", "the secret is not printed");
    }
}
