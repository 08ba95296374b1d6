//! A look at an object before the dynamic loader gets it: the loader maps what the headers promise and dies of a page that the file does not have.

use std::ops::Range;

/// Bytes of an ELF64 header and of one program header.
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;

/// Flag of a program header whose segment holds instructions.
const EXECUTABLE: u64 = 1;

/// Refuses what is not a whole x86-64 shared object; the answer is where its instructions lie, from its beginning. Says nothing about the code itself.
pub(crate) fn check_shared_object(code: &[u8]) -> Result<Range<u64>, String> {
    let header = code.get(..HEADER_BYTES).ok_or("it is too short for an ELF header")?;
    if header[..4] != *b"\x7fELF" {
        return Err("it is not an ELF object".to_owned());
    }
    if header[4..6] != [2, 1] || number::<2>(header, 18) != 62 {
        return Err("it is not for x86-64".to_owned());
    }
    if number::<2>(header, 16) != 3 {
        return Err("it is not a shared object; link it with -shared".to_owned());
    }
    let table = usize::try_from(number::<8>(header, 32)).map_err(|_| "its program headers lie outside the file")?;
    if number::<2>(header, 54) as usize != PROGRAM_HEADER_BYTES {
        return Err("its program headers have an unknown size".to_owned());
    }
    let (mut loads, mut instructions) = (0, None::<Range<u64>>);
    for index in 0..number::<2>(header, 56) as usize {
        let entry = table
            .checked_add(index * PROGRAM_HEADER_BYTES)
            .and_then(|at| code.get(at..at.checked_add(PROGRAM_HEADER_BYTES)?))
            .ok_or("its program headers lie outside the file; it is cut short")?;
        let end = number::<8>(entry, 8).checked_add(number::<8>(entry, 32));
        if end.is_none_or(|end| end > code.len() as u64) {
            return Err("a segment lies outside the file; it is cut short".to_owned());
        }
        if number::<4>(entry, 0) != 1 {
            continue;
        }
        loads += 1;
        if number::<4>(entry, 4) & EXECUTABLE != 0 {
            let (begin, bytes) = (number::<8>(entry, 16), number::<8>(entry, 32));
            let end = begin.saturating_add(bytes);
            instructions = Some(instructions.map_or(begin..end, |all| all.start.min(begin)..all.end.max(end)));
        }
    }
    if loads == 0 { Err("it has nothing to load".to_owned()) } else { Ok(instructions.unwrap_or_default()) }
}

/// The little-endian number of `N` bytes at `at`, which lies inside `bytes`.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
