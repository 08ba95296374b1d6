//! Bulk bytes of a message.

use crate::frame::WireError;
use crate::limits::{BODY_BYTES_MAX, FILES_MAX, INLINE_BYTES_MAX};
use atoll_sealed::Sealed;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Location of bytes in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blob {
    /// In the body.
    Inline {
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// A file that comes with the frame, by index.
    File(u16),
}

/// Bytes taken out of a frame.
#[derive(Debug)]
pub enum Content {
    /// From the body.
    Bytes(Vec<u8>),
    /// In a memory file.
    Sealed(Sealed),
}

/// The body and the files of a message, while it is built and after it was received.
#[derive(Debug, Default)]
pub struct Attachments {
    body: Vec<u8>,
    files: Vec<Option<OwnedFd>>,
}

impl Attachments {
    pub(crate) fn received(body: Vec<u8>, files: Vec<OwnedFd>) -> Attachments {
        Attachments { body, files: files.into_iter().map(Some).collect() }
    }

    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.body, self.files.into_iter().flatten().collect())
    }

    /// Number of files that were not taken.
    pub fn files(&self) -> usize {
        self.files.iter().flatten().count()
    }

    /// Adds bytes: to the body if they fit, otherwise in a memory file.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<Blob> {
        match self.add_inline(bytes) {
            Some(blob) => Ok(blob),
            None => self.add_file(&Sealed::of("atoll-control", bytes)?),
        }
    }

    /// Adds bytes to the body, if they fit.
    pub fn add_inline(&mut self, bytes: &[u8]) -> Option<Blob> {
        if !self.fits(bytes.len() as u64) {
            return None;
        }
        let offset = self.body.len() as u32;
        self.body.extend_from_slice(bytes);
        Some(Blob::Inline { offset, bytes: bytes.len() as u32 })
    }

    /// Adds the contents of a sealed file.
    pub fn add_sealed(&mut self, content: &Sealed) -> io::Result<Blob> {
        if self.fits(content.bytes()) { self.add(&content.to_vec()?) } else { self.add_file(content) }
    }

    /// Whether bytes fit into the body.
    pub fn fits(&self, bytes: u64) -> bool {
        bytes <= INLINE_BYTES_MAX as u64 && self.body.len() as u64 + bytes <= BODY_BYTES_MAX as u64
    }

    fn add_file(&mut self, content: &Sealed) -> io::Result<Blob> {
        self.add_memory(content).map(Blob::File)
    }

    /// Adds a file whose contents may change, such as the memory of a ring. Returns its index.
    pub fn add_memory(&mut self, memory: impl AsFd) -> io::Result<u16> {
        if self.files.len() >= FILES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a message can have at most {FILES_MAX} large tensors"),
            ));
        }
        self.files.push(Some(memory.as_fd().try_clone_to_owned()?));
        Ok((self.files.len() - 1) as u16)
    }

    /// Takes a file that was added with [`Attachments::add_memory`]. Its seals are not checked.
    pub fn take_memory(&mut self, index: u16) -> Result<OwnedFd, WireError> {
        self.files.get_mut(usize::from(index)).and_then(Option::take).ok_or(WireError::NoContent)
    }

    /// Takes the bytes that a message refers to. Each file can be taken once.
    pub fn take(&mut self, blob: Blob) -> Result<Content, WireError> {
        match blob {
            Blob::Inline { offset, bytes } => {
                let (offset, bytes) = (offset as usize, bytes as usize);
                let end = offset.checked_add(bytes).ok_or(WireError::NoContent)?;
                Ok(Content::Bytes(self.body.get(offset..end).ok_or(WireError::NoContent)?.to_vec()))
            }
            Blob::File(index) => Ok(Content::Sealed(Sealed::received(self.take_memory(index)?)?)),
        }
    }
}

impl Content {
    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::Sealed(sealed) => sealed.bytes(),
        }
    }

    /// Copies the bytes into memory.
    pub fn into_vec(self) -> io::Result<Vec<u8>> {
        match self {
            Content::Bytes(bytes) => Ok(bytes),
            Content::Sealed(sealed) => sealed.to_vec(),
        }
    }

    /// Puts the bytes into a memory file, if they are not in one.
    pub fn into_sealed(self) -> io::Result<Sealed> {
        match self {
            Content::Bytes(bytes) => Sealed::of("atoll-control", &bytes),
            Content::Sealed(sealed) => Ok(sealed),
        }
    }
}
