//! Reads and writes frames incrementally, as the socket delivers and accepts bytes.

use crate::blob::Attachments;
use crate::limits::{BODY_BYTES_MAX, FILES_MAX, MESSAGE_BYTES_MAX};
use crate::socket;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Version of the protocol. A daemon refuses frames of any other version.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"ATLC";
const HEAD_BYTES: usize = 16;

/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a frame or a message is invalid: an error of the peer, or of the system.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The bytes are not a frame.
    #[error("the peer does not speak Atoll's control protocol")]
    NoFrame,
    /// The frame has another version.
    #[error(
        "the peer uses version {0} of the control protocol, but this program uses {VERSION}; use a client and a \
        daemon of the same release"
    )]
    Version(u16),
    /// A part of the frame exceeds its limit.
    #[error("a frame has {found} {what}; the limit is {limit}")]
    TooLarge {
        /// The kind of part.
        what: &'static str,
        /// The announced size or number.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The number of files differs from the announced one.
    #[error("a frame announces {announced} files, but has {found}")]
    Files {
        /// According to the head.
        announced: usize,
        /// As received.
        found: usize,
    },
    /// The message is not valid.
    #[error("the message is not valid: {0}")]
    Message(String),
    /// A message refers to bytes or a file that the frame does not have, or to the same file twice.
    #[error("the message refers to content that its frame does not have")]
    NoContent,
    /// A file that is not sealed.
    #[error(transparent)]
    NotSealed(#[from] atoll_sealed::NotSealed),
    /// The frames of a user carry too many files at one time. Only the daemon reports this error.
    #[error("the requests of this user have {found} files at one time; the limit is {limit}")]
    FilesOfUser {
        /// The number of files.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A complete frame.
#[derive(Debug, Default)]
pub struct Frame {
    message: Vec<u8>,
    body: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Frame {
    /// Number of files in the frame.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Decodes the message, and returns it with the attachments.
    pub fn decode<T: DeserializeOwned>(self) -> Result<(T, Attachments), WireError> {
        let message = serde_json::from_slice(&self.message).map_err(|error| WireError::Message(error.to_string()))?;
        Ok((message, Attachments::received(self.body, self.files)))
    }
}

/// Result of one step of reading or writing.
#[derive(Debug)]
pub enum Progress<T> {
    /// Incomplete: more steps are needed.
    More,
    /// Complete.
    Done(T),
    /// The peer closed the connection between two frames.
    Closed,
}

/// A frame that is being received. Call [`Incoming::step`] whenever the socket is readable.
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
    /// Whether part of a frame has arrived.
    pub fn has_begun(&self) -> bool {
        !self.head.is_empty()
    }

    /// Number of files that have arrived.
    pub fn files(&self) -> usize {
        self.frame.files.len()
    }

    /// Reads once. Returns [`io::ErrorKind::WouldBlock`] if the socket is non-blocking and has no
    /// data.
    pub fn step(&mut self, socket: impl AsFd) -> Result<Progress<Frame>, WireError> {
        let mut chunk = [0; CHUNK_BYTES];
        let wanted = self.missing().min(CHUNK_BYTES);
        let count = socket::receive(socket, &mut chunk[..wanted], &mut self.frame.files)?;
        if self.frame.files.len() > FILES_MAX {
            return Err(WireError::TooLarge { what: "files", found: self.frame.files.len(), limit: FILES_MAX });
        }
        if count == 0 {
            let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended within a frame");
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

    /// Bytes missing in the part that is being received.
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

/// A frame that is being sent.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// Not yet sent; the files go with the first byte.
    files: Vec<OwnedFd>,
}

impl Outgoing {
    /// Builds a frame from a message and its attachments. Fails if a limit is exceeded, so that the
    /// peer need not refuse it.
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

    /// Writes once. Returns [`io::ErrorKind::WouldBlock`] if the socket is non-blocking and full.
    pub fn step(&mut self, socket: impl AsFd) -> io::Result<Progress<()>> {
        self.written += socket::send(socket, &self.bytes[self.written..], &self.files)?;
        // The files went with the first byte.
        self.files.clear();
        Ok(if self.written == self.bytes.len() { Progress::Done(()) } else { Progress::More })
    }
}
