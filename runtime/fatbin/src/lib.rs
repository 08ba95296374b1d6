//! Fat binaries: the containers in which `nvcc` packs PTX and machine code for several devices.
//!
//! A fat binary is a header and entries. An entry has a header with its kind, its compute
//! capability and its sizes, followed by contents that may be compressed by LZ4 or Zstandard.
//! [`entries`] checks all sizes once, [`Entry::contents`] decompresses, and [`ptx`] chooses the PTX
//! that a driver would compile for a device.
//!
//! What it is not: it does not run or change code, and does not parse machine code.
//!
//! Invariants: no byte outside the given slice is read, whatever the headers declare. A
//! decompressed entry has exactly the size that its header declares, which is at most
//! [`CONTENTS_BYTES_MAX`].
//!
//! The layout is that of files that `nvcc` 11 to 13 write; NVIDIA does not document it.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io::Read;

/// The first word of a fat binary.
pub const MAGIC: u32 = 0xba55_ed50;

/// The first word of the struct by which `nvcc` passes a fat binary to the runtime. The address of
/// the fat binary is at byte 8.
pub const WRAPPER: u32 = 0x4662_43b1;

/// Maximum size of a decompressed entry in bytes. Also the maximum window size of a Zstandard
/// frame.
pub const CONTENTS_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of entries of a fat binary.
pub const ENTRIES_MAX: usize = 4096;

/// Size in bytes of the header, and minimum size of an entry's header.
const HEAD_BYTES: usize = 16;
const ENTRY_HEAD_BYTES: usize = 16;

/// Flags of an entry: how its contents are compressed.
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// A compression that only compilers before CUDA 11 used.
const OLD_COMPRESSION: u64 = 0x1000;

/// Why a fat binary cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FatbinError {
    /// The first word is not [`MAGIC`].
    #[error("it is not a fat binary: it does not begin with {MAGIC:#010x}")]
    NotAFatBinary,
    /// A header refers to bytes outside the fat binary, or sizes contradict each other.
    #[error("the fat binary is damaged: {what} at byte {at} does not fit its {bytes} bytes")]
    Size {
        /// The part whose size is wrong.
        what: &'static str,
        /// Where the part begins.
        at: usize,
        /// The size of the fat binary.
        bytes: usize,
    },
    /// There are more than [`ENTRIES_MAX`] entries.
    #[error("the fat binary has more than {ENTRIES_MAX} entries")]
    Entries,
    /// An entry declares more than [`CONTENTS_BYTES_MAX`] bytes.
    #[error("an entry of the fat binary declares {bytes} bytes; at most {CONTENTS_BYTES_MAX} are read")]
    TooLarge {
        /// The declared size.
        bytes: u64,
    },
    /// The contents are damaged.
    #[error("an entry of the fat binary cannot be decompressed by {method}: {why}")]
    Compression {
        /// The method that its flags name.
        method: &'static str,
        /// The reason.
        why: String,
    },
    /// No entry is for the device.
    #[error("the fat binary has no PTX{}; it has {}", device(.capability), list(.found))]
    NoPtx {
        /// The device's compute capability: 90 is 9.0. `u32::MAX` for any device.
        capability: u32,
        /// Descriptions of its entries.
        found: Vec<String>,
    },
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PTX.
    Ptx,
    /// Machine code, as an ELF file.
    MachineCode,
    /// Something else, by its number.
    Other(u16),
}

/// An entry; its sizes have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// What it holds.
    pub kind: Kind,
    /// The compute capability that it is for: 90 is 9.0.
    pub capability: u32,
    /// The bytes of the contents as stored: they may be compressed or padded.
    pub payload: &'a [u8],
    flags: u64,
    compressed_bytes: u32,
    contents_bytes: u64,
}

/// The entries of a fat binary.
///
/// # Errors
/// If a header refers to bytes outside `image`, or there are too many entries.
pub fn entries(image: &[u8]) -> Result<Vec<Entry<'_>>, FatbinError> {
    let wrong = |what, at| FatbinError::Size { what, at, bytes: image.len() };
    if image.get(..4) != Some(&MAGIC.to_le_bytes()) {
        return Err(FatbinError::NotAFatBinary);
    }
    let head_bytes = short(image, 6).ok_or(wrong("the header", 0))?.into();
    let bytes = long(image, 8).and_then(|bytes| usize::try_from(bytes).ok()).ok_or(wrong("the header", 0))?;
    let end = bytes.checked_add(head_bytes).filter(|end| *end <= image.len() && head_bytes >= HEAD_BYTES);
    let image = &image[..end.ok_or(wrong("the header", 0))?];
    let (mut found, mut at) = (Vec::new(), head_bytes);
    while at < image.len() {
        if found.len() == ENTRIES_MAX {
            return Err(FatbinError::Entries);
        }
        let (entry, end) = entry(image, at).ok_or(wrong("an entry", at))?;
        found.push(entry);
        at = end;
    }
    Ok(found)
}

/// The entry at an offset, and the offset of its end.
fn entry(image: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let rest = &image[at..];
    let head_bytes = word(rest, 4)? as usize;
    let head = rest.get(..head_bytes).filter(|_| head_bytes >= ENTRY_HEAD_BYTES)?;
    let bytes = usize::try_from(long(head, 8)?).ok()?;
    let end = head_bytes.checked_add(bytes)?;
    let payload = rest.get(head_bytes..end)?;
    let kind = match short(head, 0)? {
        1 => Kind::Ptx,
        2 => Kind::MachineCode,
        other => Kind::Other(other),
    };
    // A shorter header lacks the fields read below.
    let compressed_bytes = word(head, 16).unwrap_or(0);
    if compressed_bytes as usize > payload.len() {
        return None;
    }
    let entry = Entry {
        kind,
        capability: word(head, 28).unwrap_or(0),
        payload,
        flags: long(head, 40).unwrap_or(0),
        compressed_bytes,
        contents_bytes: long(head, 56).unwrap_or(0),
    };
    Some((entry, at + end))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl<'a> Entry<'a> {
    /// The decompressed contents. Contents that are stored uncompressed may have padding at their
    /// end.
    ///
    /// # Errors
    /// If the contents are damaged or too large, or the compression is unknown.
    pub fn contents(&self) -> Result<Cow<'a, [u8]>, FatbinError> {
        let compressed = &self.payload[..self.compressed_bytes as usize];
        if self.flags & (LZ4 | ZSTANDARD | OLD_COMPRESSION) == 0 {
            return Ok(Cow::Borrowed(self.payload));
        }
        let bytes = usize::try_from(self.contents_bytes).ok().filter(|_| self.contents_bytes <= CONTENTS_BYTES_MAX);
        let bytes = bytes.ok_or(FatbinError::TooLarge { bytes: self.contents_bytes })?;
        let (method, contents) = if self.flags & LZ4 != 0 {
            ("LZ4", lz4_flex::block::decompress(compressed, bytes).map_err(|error| error.to_string()))
        } else if self.flags & ZSTANDARD != 0 {
            ("Zstandard", zstandard(compressed, bytes))
        } else {
            ("a method of compilers before CUDA 11", Err("it is not supported; compile again".to_owned()))
        };
        let contents = contents.and_then(|contents| match contents.len() {
            count if count == bytes => Ok(contents),
            count => Err(format!("its header declares {bytes} bytes, and it has {count}")),
        });
        contents.map(Cow::Owned).map_err(|why| FatbinError::Compression { method, why })
    }
}

/// Decompresses at most one byte more than declared, so that a size that is too small is detected.
fn zstandard(compressed: &[u8], bytes: usize) -> Result<Vec<u8>, String> {
    let decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(compressed, CONTENTS_BYTES_MAX);
    let decoder = decoder.map_err(|error| error.to_string())?;
    let mut contents = Vec::new();
    decoder.take(bytes as u64 + 1).read_to_end(&mut contents).map_err(|error| error.to_string())?;
    Ok(contents)
}

/// The PTX that a driver would compile for a device: the one with the highest compute capability
/// that the device supports. `capability` is that of the device: 90 is 9.0. `u32::MAX` is any device.
///
/// # Errors
/// If the fat binary or the PTX is damaged, or no PTX is for the device.
pub fn ptx(image: &[u8], capability: u32) -> Result<Cow<'_, [u8]>, FatbinError> {
    let entries = entries(image)?;
    let fitting = entries.iter().filter(|entry| entry.kind == Kind::Ptx && entry.capability <= capability);
    let Some(entry) = fitting.max_by_key(|entry| entry.capability) else {
        let found = entries.iter().map(|entry| match entry.kind {
            Kind::Ptx => format!("PTX for sm_{}", entry.capability),
            Kind::MachineCode => format!("machine code for sm_{}", entry.capability),
            Kind::Other(kind) => format!("an entry of kind {kind}"),
        });
        return Err(FatbinError::NoPtx { capability, found: found.take(16).collect() });
    };
    let is_padding = |byte: &u8| *byte == 0;
    Ok(match entry.contents()? {
        Cow::Borrowed(text) => {
            Cow::Borrowed(&text[..text.len() - text.iter().rev().take_while(|b| is_padding(b)).count()])
        }
        Cow::Owned(mut text) => {
            let padding = text.iter().rev().take_while(|byte| is_padding(byte)).count();
            text.truncate(text.len() - padding);
            Cow::Owned(text)
        }
    })
}

fn device(capability: &u32) -> String {
    if *capability == u32::MAX { String::new() } else { format!(" for sm_{capability}") }
}

fn list(found: &[String]) -> String {
    if found.is_empty() { "nothing".to_owned() } else { found.join(", ") }
}

#[cfg(test)]
mod tests;
