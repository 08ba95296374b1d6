//! The size of a module's image. Programs pass only its address.

use crate::arguments::Place;
use atoll_fatbin::{MAGIC, WRAPPER};
use atoll_session::{Code, limits::IMAGE_BYTES_MAX};

/// First word of machine code.
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// The bytes of an image: PTX without its NUL, a fat binary, or machine code.
pub(crate) fn image<'a>(at: Place) -> Result<&'a [u8], Code> {
    let mut at = at;
    let mut first = at.values::<u32>().get(0)?;
    if first == WRAPPER {
        at = Place::at(at.behind(8)?.values::<u64>().get(0)?);
        first = at.values::<u32>().get(0)?;
    }
    let bytes = match first {
        WRAPPER => return Err(Code::INVALID_IMAGE),
        MAGIC => {
            let head = at.behind(6)?.values::<u16>().get(0)?;
            at.behind(8)?.values::<u64>().get(0)?.checked_add(head.into()).ok_or(Code::INVALID_IMAGE)?
        }
        ELF => elf_bytes(at)?,
        // PTX is a text with a NUL at its end.
        _ => at.values().text().map_err(|_| Code::INVALID_IMAGE)?.len() as u64,
    };
    if bytes > IMAGE_BYTES_MAX {
        return Err(Code::INVALID_IMAGE);
    }
    at.bytes(bytes)
}

/// The size of a 64-bit ELF file in bytes: the end of its last part.
fn elf_bytes(at: Place) -> Result<u64, Code> {
    let long = |at: Place| at.values::<u64>().get(0);
    let short = |offset: u64| at.behind(offset)?.values::<u16>().get(0).map(u64::from);
    let table = |offset: u64, size: u64, count: u64| {
        size.checked_mul(count).and_then(|bytes| bytes.checked_add(offset)).ok_or(Code::INVALID_IMAGE)
    };
    let (segments, sections) = (long(at.behind(32)?)?, long(at.behind(40)?)?);
    let (segment_bytes, segment_count) = (short(54)?, short(56)?);
    let (section_bytes, section_count) = (short(58)?, short(60)?);
    let mut end = table(segments, segment_bytes, segment_count)?.max(table(sections, section_bytes, section_count)?);
    if end > IMAGE_BYTES_MAX || (section_count > 0 && section_bytes < 64) {
        return Err(Code::INVALID_IMAGE);
    }
    for index in 0..section_count {
        let section = at.behind(sections + index * section_bytes)?;
        let kind = section.behind(4)?.values::<u32>().get(0)?;
        let (offset, bytes) = (long(section.behind(24)?)?, long(section.behind(32)?)?);
        // Section type 8 has no contents in the file.
        if kind != 8 {
            end = end.max(table(offset, bytes, 1)?);
        }
    }
    Ok(end)
}
