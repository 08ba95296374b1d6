//! The file of a recording: a header and items.
//!
//! The header has the magic, the version (4 bytes), four zero bytes, and the address and the size of
//! the session's memory (8 bytes each). An item has its kind (4 bytes), an error of the driver or 0
//! (4 bytes), the size of its contents (8 bytes), and its contents.

use crate::code::Code;
use crate::field::{Field, Reader, WireError};
use crate::ranges::Span;
use crate::record::Record;

/// First bytes of a recording.
const MAGIC: [u8; 8] = *b"ATOLLREC";

/// The version of the format.
const VERSION: u32 = 2;

const PART: u32 = 1;
const CALL: u32 = 2;
const END: u32 = 3;

/// Size in bytes of an item without its contents.
const ITEM_BYTES: usize = 16;

/// An item of a recording.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A part of the data that the next call copies to the host.
    Part(&'a [u8]),
    /// A call with its answer or its error.
    Call(&'a Record<'a>, Result<&'a [u8], Code>),
    /// The end of the session. A recording without it is incomplete.
    End,
}

impl Item<'_> {
    /// Encodes the item at the end of `to`.
    pub fn write(&self, to: &mut Vec<u8>) {
        let (kind, code) = match self {
            Item::Part(_) => (PART, 0),
            Item::Call(_, result) => (CALL, result.map_or_else(|code| code.0, |_| 0)),
            Item::End => (END, 0),
        };
        kind.write(to);
        code.write(to);
        0u64.write(to);
        let start = to.len();
        match self {
            Item::Part(bytes) => to.extend_from_slice(bytes),
            Item::Call(record, result) => {
                record.write(to);
                to.extend_from_slice(result.unwrap_or_default());
            }
            Item::End => {}
        }
        let bytes = (to.len() - start) as u64;
        to[start - 8..start].copy_from_slice(&bytes.to_le_bytes());
    }
}

/// The header of a recording of a session with this memory.
pub fn recording_head(memory: Span) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    VERSION.write(&mut bytes);
    0u32.write(&mut bytes);
    memory.at.write(&mut bytes);
    memory.bytes.write(&mut bytes);
    bytes
}

/// Why a file cannot be read as a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// The first bytes are others.
    #[error("it is not a recording of `atoll trace cuda`")]
    NotARecording,
    /// The file has another version.
    #[error("it has version {0} of the format; this Atoll reads version {VERSION}")]
    Version(u32),
    /// The file ends before the session.
    #[error("it is incomplete: the session did not end, the disk was full, or the recording was too large")]
    Incomplete,
    /// The contents are damaged.
    #[error("it is damaged: {0}")]
    Wire(#[from] WireError),
}

/// A recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its number in the session, from 0.
    pub number: u64,
    /// The call.
    pub record: Record<'a>,
    /// Its answer, or its error.
    pub result: Result<&'a [u8], Code>,
    /// The data that it copied to the host.
    pub data: Vec<u8>,
}

/// The calls of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording<'a> {
    /// The memory of the session.
    pub memory: Span,
    /// Its calls, in order.
    pub calls: Vec<Call<'a>>,
}

impl<'a> Recording<'a> {
    /// Decodes a file.
    ///
    /// # Errors
    /// If the bytes are not a complete recording.
    pub fn read(bytes: &'a [u8]) -> Result<Recording<'a>, RecordingError> {
        let mut reader = Reader::new(bytes);
        if reader.get::<[u8; 8]>().ok() != Some(MAGIC) {
            return Err(RecordingError::NotARecording);
        }
        let (version, _zero) = (reader.get::<u32>()?, reader.get::<u32>()?);
        if version != VERSION {
            return Err(RecordingError::Version(version));
        }
        let memory = Span { at: reader.get()?, bytes: reader.get()? };
        let (mut calls, mut data) = (Vec::new(), Vec::new());
        loop {
            if reader.left() < ITEM_BYTES {
                return Err(RecordingError::Incomplete);
            }
            let (kind, code, bytes) = (reader.get::<u32>()?, reader.get::<i32>()?, reader.get::<u64>()?);
            if bytes > reader.left() as u64 {
                return Err(RecordingError::Incomplete);
            }
            let contents = reader.take(bytes)?;
            match kind {
                PART => data.extend_from_slice(contents),
                CALL => {
                    let mut fields = Reader::new(contents);
                    let record = Record::read(&mut fields)?;
                    let answer = fields.take(fields.left() as u64)?;
                    let result = if code == 0 { Ok(answer) } else { Err(Code(code)) };
                    let data = std::mem::take(&mut data);
                    calls.push(Call { number: calls.len() as u64, record, result, data });
                }
                END if bytes == 0 && reader.left() == 0 => return Ok(Recording { memory, calls }),
                other => return Err(WireError::Value { what: "the kind of an item", value: other.into() }.into()),
            }
        }
    }
}
