//! The directory of a bundle: where each member is in the file.
//!
//! A bundle comes from a tenant, and its file may be sparse: an archive of a few bytes can claim any
//! size and any number of members. So this reads at explicit offsets and maps nothing, and checks
//! every claim of the archive before it reads or allocates anything for it. The file's size does not
//! matter: the directory of a bundle takes at most [`DIRECTORY_BYTES_MAX`], and holes of a memory
//! file stay holes.
//!
//! Vocabulary of the zip format: the *end record* is at the end of the file and locates the
//! directory, if need be through the *zip64 locator* and the *zip64 record*. The directory has a
//! header for each member, which locates its *local header*; the member's bytes follow that one.

use crate::limits::{DIRECTORY_BYTES_MAX, MEMBERS_MAX};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

const LOCAL_HEADER: [u8; 4] = *b"PK\x03\x04";
const HEADER: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR_64: [u8; 4] = *b"PK\x06\x07";

/// Sizes of records, without their parts of variable length.
const LOCAL_HEADER_BYTES: u64 = 30;
const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const LOCATOR_64_BYTES: usize = 20;

/// Longest comment after the end record.
const COMMENT_BYTES_MAX: usize = 0xffff;

/// Flag of an encrypted member.
const ENCRYPTED: u16 = 1;
/// Compression method of a stored member.
const STORED: u16 = 0;
/// Id of the extra field with the numbers that do not fit the header.
const EXTRA_64: u16 = 1;
/// A 32-bit field with this value refers to the 64-bit field of [`EXTRA_64`] or [`END_64`].
const SEE_64: u64 = 0xffff_ffff;
/// The same for the number of members.
const SEE_64_COUNT: u64 = 0xffff;

/// Bytes that can be read at any offset.
pub(super) trait Source {
    /// Number of bytes.
    fn bytes(&self) -> u64;

    /// Fills the buffer with the bytes at an offset.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The bytes of a range, which the caller has checked against [`Source::bytes`].
    fn read(&self, at: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}

impl Source for [u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(at).ok();
        let range = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why there is no usable directory.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not the directory of a bundle; the text says why.
    #[error("{0}")]
    Corrupt(String),
}

fn corrupt(reason: impl Into<String>) -> DirectoryError {
    DirectoryError::Corrupt(reason.into())
}

type Found<T> = Result<T, DirectoryError>;

/// The byte range of each member in the file. The ranges are within the file and do not overlap.
pub(super) fn members(source: &(impl Source + ?Sized)) -> Found<BTreeMap<String, Range<u64>>> {
    let directory = Directory::find(source)?;
    let bytes = source.read(directory.range.start, (directory.range.end - directory.range.start) as usize)?;
    let mut fields = Fields(&bytes);
    let mut members = BTreeMap::new();
    for _ in 0..directory.members {
        let header = Header::read(&mut fields)?;
        let range = header.locate(source)?;
        if let Some(_earlier) = members.insert(header.name.clone(), range) {
            return Err(corrupt(format!("member {} is listed twice", header.name)));
        }
    }
    check_disjoint(&members)?;
    Ok(members)
}

/// Refuses members that share bytes. Otherwise a small file could have many large members, which
/// would take long to check.
fn check_disjoint(members: &BTreeMap<String, Range<u64>>) -> Found<()> {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by_key(|(_, range)| (range.start, range.end));
    let mut neighbours = sorted.iter().zip(sorted.iter().skip(1));
    match neighbours.find(|((_, range), (_, next))| range.end > next.start) {
        Some(((name, _), (other, _))) => Err(corrupt(format!("members {name} and {other} overlap"))),
        None => Ok(()),
    }
}

/// Where the directory is, and how many members it has. Both are within the limits.
struct Directory {
    range: Range<u64>,
    members: u64,
}

impl Directory {
    fn find(source: &(impl Source + ?Sized)) -> Found<Directory> {
        let (at, record) = end_record(source)?;
        let mut fields = Fields(&record[END.len()..]);
        // Numbers of disks, and of members on this disk.
        fields.skip(6)?;
        let (members, bytes, start) = (fields.u16()?.into(), fields.u32()?.into(), fields.u32()?.into());
        if members == SEE_64_COUNT || bytes == SEE_64 || start == SEE_64 {
            return Directory::find_64(source, at);
        }
        Directory::new(members, start, bytes, at)
    }

    /// Reads the zip64 record; `end` is the offset of the end record, which follows the locator.
    fn find_64(source: &(impl Source + ?Sized), end: u64) -> Found<Directory> {
        let missing = || corrupt("its zip64 record is missing");
        let at = end.checked_sub(LOCATOR_64_BYTES as u64).ok_or_else(missing)?;
        let locator = source.read(at, LOCATOR_64_BYTES)?;
        let mut fields = Fields(locator.strip_prefix(&LOCATOR_64).ok_or_else(missing)?);
        fields.skip(4)?;
        let record_at = fields.u64()?;
        if record_at.checked_add(END_64_BYTES as u64).is_none_or(|record_end| record_end > at) {
            return Err(missing());
        }
        let record = source.read(record_at, END_64_BYTES)?;
        let mut fields = Fields(record.strip_prefix(&END_64).ok_or_else(missing)?);
        // Size of the record, versions, numbers of disks, and of members on this disk.
        fields.skip(28)?;
        let (members, bytes, start) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Directory::new(members, start, bytes, record_at)
    }

    fn new(members: u64, start: u64, bytes: u64, end: u64) -> Found<Directory> {
        if members > MEMBERS_MAX as u64 {
            return Err(corrupt(format!("{members} members, at most {MEMBERS_MAX} are allowed")));
        }
        if bytes > DIRECTORY_BYTES_MAX {
            return Err(corrupt(format!("its directory has {bytes} bytes, at most {DIRECTORY_BYTES_MAX} are allowed")));
        }
        match start.checked_add(bytes) {
            Some(directory_end) if directory_end <= end => Ok(Directory { range: start..directory_end, members }),
            _ => Err(corrupt("its directory extends past the end record")),
        }
    }
}

/// The end record and its offset: the last one whose comment ends with the file.
fn end_record(source: &(impl Source + ?Sized)) -> Found<(u64, Vec<u8>)> {
    let count = source.bytes().min((END_BYTES + COMMENT_BYTES_MAX) as u64) as usize;
    let start = source.bytes() - count as u64;
    let tail = source.read(start, count)?;
    let is_record = |record: &[u8]| match record.split_at_checked(END_BYTES) {
        Some((fixed, comment)) => fixed.starts_with(&END) && fixed.ends_with(&(comment.len() as u16).to_le_bytes()),
        None => false,
    };
    let at = (0..count).rev().find(|at| is_record(&tail[*at..]));
    let at = at.ok_or_else(|| corrupt("it is not a zip archive"))?;
    Ok((start + at as u64, tail[at..at + END_BYTES].to_vec()))
}

/// What the directory says about a member.
struct Header {
    name: String,
    bytes: u64,
    /// Offset of its local header.
    at: u64,
}

impl Header {
    fn read(fields: &mut Fields<'_>) -> Found<Header> {
        if fields.take(HEADER.len())? != HEADER {
            return Err(corrupt("its directory is damaged"));
        }
        // Versions.
        fields.skip(4)?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        // Time, date and checksum. The manifest has better ones.
        fields.skip(8)?;
        let (compressed, bytes) = (u64::from(fields.u32()?), u64::from(fields.u32()?));
        let [name, extra, comment] = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
        // Number of the disk, and attributes.
        fields.skip(8)?;
        let at = u64::from(fields.u32()?);
        let name = std::str::from_utf8(fields.take(name)?).map_err(|_| corrupt("the name of a member is not UTF-8"))?;
        let (bytes, compressed, at) = wide(fields.take(extra)?, [bytes, compressed, at])?;
        fields.skip(comment)?;
        if flags & ENCRYPTED != 0 {
            return Err(corrupt(format!("member {name} is encrypted")));
        }
        if method != STORED || compressed != bytes {
            return Err(corrupt(format!("member {name} is compressed")));
        }
        Ok(Header { name: name.into(), bytes, at })
    }

    /// The range of the member's bytes, which follow its local header.
    fn locate(&self, source: &(impl Source + ?Sized)) -> Found<Range<u64>> {
        let beyond = || corrupt(format!("member {} extends past the end of the file", self.name));
        let fixed_end = self.at.checked_add(LOCAL_HEADER_BYTES).filter(|end| *end <= source.bytes());
        let fixed_end = fixed_end.ok_or_else(beyond)?;
        let header = source.read(self.at, LOCAL_HEADER_BYTES as usize)?;
        if !header.starts_with(&LOCAL_HEADER) {
            return Err(corrupt(format!("the header of member {} is damaged", self.name)));
        }
        let mut fields = Fields(&header[26..]);
        let start = fixed_end + u64::from(fields.u16()?) + u64::from(fields.u16()?);
        let end = start.checked_add(self.bytes).filter(|end| *end <= source.bytes());
        Ok(start..end.ok_or_else(beyond)?)
    }
}

/// Replaces each of a header's numbers that is [`SEE_64`] by the next number of the extra field.
fn wide(extra: &[u8], numbers: [u64; 3]) -> Found<(u64, u64, u64)> {
    let mut wide = Fields(&[]);
    let mut fields = Fields(extra);
    while !fields.0.is_empty() {
        let (id, bytes) = (fields.u16()?, fields.u16()?);
        let content = fields.take(bytes.into())?;
        if id == EXTRA_64 {
            wide = Fields(content);
        }
    }
    let mut number = |number| if number == SEE_64 { wide.u64() } else { Ok(number) };
    let [bytes, compressed, at] = numbers;
    Ok((number(bytes)?, number(compressed)?, number(at)?))
}

/// Little-endian numbers, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Found<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| corrupt("its directory ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, count: usize) -> Found<()> {
        self.take(count).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Found<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(|| corrupt("its directory ends early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Found<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Found<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Found<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
