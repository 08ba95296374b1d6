//! Frames: read and written piece by piece, as a socket takes and gives them.

use crate::blob::Attachments;
use crate::limits::{BODY_BYTES_MAX, FILES_MAX, MESSAGE_BYTES_MAX};
use crate::socket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Version of the protocol. A daemon answers others with a refusal.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"ATLC";
const HEAD_BYTES: usize = 16;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a frame or a message cannot be used: the peer's mistake, unless it is the system's.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It is no frame.
    #[error("the peer does not speak Atoll's control protocol")]
    NoFrame,
    /// A frame of another version.
    #[error(
        "the peer speaks version {0} of the control protocol, this one speaks {VERSION}; use a client and a daemon of one release"
    )]
    Version(u16),
    /// More than there may be.
    #[error("a frame has {found} {what}, at most {limit} are allowed")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How much was announced.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
    /// Other files than announced.
    #[error("a frame announces {announced} files and has {found}")]
    Files {
        /// In the head.
        announced: usize,
        /// Received.
        found: usize,
    },
    /// The message is not what the protocol has.
    #[error("the message cannot be understood: {0}")]
    Message(String),
    /// A message speaks of bytes or of a file that its frame does not have, or of one file twice.
    #[error("the message names content that its frame does not have")]
    NoContent,
    /// A file that could change.
    #[error(transparent)]
    NotSealed(#[from] atoll_sealed::NotSealed),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A frame that has arrived.
#[derive(Debug, Default)]
pub struct Frame {
    message: Vec<u8>,
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Frame {
    /// Reads the message, and hands over what came with it.
    pub fn decode<T: DeserializeOwned>(self) -> Result<(T, Attachments), WireError> {
        let message = serde_json::from_slice(&self.message).map_err(|error| WireError::Message(error.to_string()))?;
        Ok((message, Attachments::received(self.body, self.files)))
    }
}

/// What a step of reading or writing led to.
#[derive(Debug)]
pub enum Progress<T> {
    /// It goes on.
    More,
    /// It is complete.
    Done(T),
    /// The peer closed the connection between two frames.
    Closed,
}

/// A frame that is being read. Read step by step, whenever the socket has something.
#[derive(Debug, Default)]
pub struct Incoming {
    head: Vec<u8>,
    frame: Frame,
    expected: Option<Head>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    files: usize,
    message_bytes: usize,
    body_bytes: usize,
}

impl Head {
    fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Head, WireError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
        if bytes[..4] != MAGIC {
            return Err(WireError::NoFrame);
        }
        if u16_at(4) != VERSION {
            return Err(WireError::Version(u16_at(4)));
        }
        let head = Head { files: u16_at(6).into(), message_bytes: u32_at(8), body_bytes: u32_at(12) };
        let bounds = [
            ("files", head.files, FILES_MAX),
            ("bytes of message", head.message_bytes, MESSAGE_BYTES_MAX),
            ("bytes of body", head.body_bytes, BODY_BYTES_MAX),
        ];
        match bounds.into_iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => Err(WireError::TooLarge { what, found, limit }),
            None => Ok(head),
        }
    }
}

impl Incoming {
    /// Whether a part of a frame has arrived.
    pub fn has_begun(&self) -> bool {
        !self.head.is_empty()
    }

    /// Reads once. Fails with [`io::ErrorKind::WouldBlock`] on a socket that does not block and has
    /// nothing.
    pub fn step(&mut self, socket: impl AsFd) -> Result<Progress<Frame>, WireError> {
        let mut chunk = [0; CHUNK_BYTES];
        let wanted = self.missing().min(CHUNK_BYTES);
        let count = socket::receive(socket, &mut chunk[..wanted], &mut self.frame.files)?;
        if self.frame.files.len() > FILES_MAX {
            return Err(WireError::TooLarge { what: "files", found: self.frame.files.len(), limit: FILES_MAX });
        }
        if count == 0 {
            let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection broke off within a frame");
            return if self.has_begun() { Err(closed.into()) } else { Ok(Progress::Closed) };
        }
        self.take(&chunk[..count])?;
        let Some(head) = self.expected.filter(|_| self.missing() == 0) else { return Ok(Progress::More) };
        let frame = std::mem::take(self).frame;
        if frame.files.len() != head.files {
            return Err(WireError::Files { announced: head.files, found: frame.files.len() });
        }
        Ok(Progress::Done(frame))
    }

    /// How many bytes of the part that is being read have not arrived.
    fn missing(&self) -> usize {
        match self.expected {
            None => HEAD_BYTES - self.head.len(),
            Some(head) if self.frame.message.len() < head.message_bytes => {
                head.message_bytes - self.frame.message.len()
            }
            Some(head) => head.body_bytes - self.frame.body.len(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let part = match self.expected {
            None => &mut self.head,
            Some(head) if self.frame.message.len() < head.message_bytes => &mut self.frame.message,
            Some(_) => &mut self.frame.body,
        };
        part.extend_from_slice(bytes);
        if self.expected.is_none()
            && let Ok(head) = self.head.as_slice().try_into()
        {
            self.expected = Some(Head::parse(head)?);
        }
        Ok(())
    }
}

/// A frame that is being written.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// Until the first byte is written.
    files: Vec<OwnedFd>,
}

impl Outgoing {
    /// A frame with a message and what goes with it. What is too large is refused here and not by
    /// the peer.
    pub fn new(message: &impl Serialize, attachments: Attachments) -> Result<Outgoing, WireError> {
        let (body, files) = attachments.into_parts();
        let message = serde_json::to_vec(message).map_err(|error| WireError::Message(error.to_string()))?;
        let size = |what, found: usize, limit| match u32::try_from(found) {
            Ok(size) if found <= limit => Ok(size),
            _ => Err(WireError::TooLarge { what, found, limit }),
        };
        let message_bytes = size("bytes of message", message.len(), MESSAGE_BYTES_MAX)?;
        let body_bytes = size("bytes of body", body.len(), BODY_BYTES_MAX)?;
        let file_count = size("files", files.len(), FILES_MAX)? as u16;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + message.len() + body.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(file_count.to_le_bytes());
        bytes.extend(message_bytes.to_le_bytes());
        bytes.extend(body_bytes.to_le_bytes());
        bytes.extend(message);
        bytes.extend(body);
        Ok(Outgoing { bytes, written: 0, files })
    }

    /// Writes once. Fails with [`io::ErrorKind::WouldBlock`] on a socket that does not block and is
    /// full.
    pub fn step(&mut self, socket: impl AsFd) -> io::Result<Progress<()>> {
        self.written += socket::send(socket, &self.bytes[self.written..], &self.files)?;
        // They went with the first byte.
        self.files.clear();
        Ok(if self.written == self.bytes.len() { Progress::Done(()) } else { Progress::More })
    }
}
