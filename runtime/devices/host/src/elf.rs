//! Checks of an object before it is mapped: its headers are untrusted.

use std::ops::Range;

/// Size of an ELF64 header and of one program header, in bytes.
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;

/// Types of program headers: loadable segment, thread-local storage.
const LOAD: u64 = 1;
const TLS: u64 = 7;

/// Flags of program headers.
const EXECUTABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Most memory that a segment may take beyond its size in the file, in bytes.
const ADDRESS_MAX: u64 = 1 << 40;

/// A loadable segment of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its range in the file.
    pub(crate) file: Range<u64>,
    /// Its range in memory, from the object's beginning; at least as large as in the file, with
    /// zeros behind the file contents.
    pub(crate) memory: Range<u64>,
    pub(crate) is_writable: bool,
    pub(crate) is_executable: bool,
}

impl Segment {
    /// Whether `bytes` bytes at an address of the object lie in it.
    pub(crate) fn holds(&self, at: u64, bytes: u64) -> bool {
        at >= self.memory.start && at.checked_add(bytes).is_some_and(|end| end <= self.memory.end)
    }

    /// The pages that it covers.
    pub(crate) fn pages(&self, page: u64) -> Range<u64> {
        self.memory.start / page * page..self.memory.end.next_multiple_of(page)
    }
}

/// Checks that an object is a complete x86-64 shared object. Returns its loadable segments in
/// order, no two of them on one page. Does not check the code itself.
pub(crate) fn check_shared_object(code: &[u8]) -> Result<Vec<Segment>, String> {
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
    let table = usize::try_from(number::<8>(header, 32)).map_err(|_| "its program headers are outside the file")?;
    if number::<2>(header, 54) as usize != PROGRAM_HEADER_BYTES {
        return Err("its program headers have an unknown size".to_owned());
    }
    let mut segments: Vec<Segment> = Vec::new();
    for index in 0..number::<2>(header, 56) as usize {
        let entry = table
            .checked_add(index * PROGRAM_HEADER_BYTES)
            .and_then(|at| code.get(at..at.checked_add(PROGRAM_HEADER_BYTES)?))
            .ok_or("its program headers are outside the file; it is cut short")?;
        let segment = segment(entry, code.len() as u64)?;
        match number::<4>(entry, 0) {
            LOAD if segment.memory.is_empty() => {}
            LOAD => segments.push(segment),
            TLS => return Err("it has thread-local variables, which are not supported".to_owned()),
            _ => {}
        }
    }
    if segments.is_empty() {
        return Err("it has no loadable segment".to_owned());
    }
    let page = rustix::param::page_size() as u64;
    let overlap = |pair: &[Segment]| pair[0].pages(page).end > pair[1].pages(page).start;
    if segments.windows(2).any(overlap) {
        return Err("its segments overlap or share a page".to_owned());
    }
    if segments.iter().any(|segment| segment.is_writable && segment.is_executable) {
        return Err("it has writable code".to_owned());
    }
    Ok(segments)
}

fn segment(entry: &[u8], file_bytes: u64) -> Result<Segment, String> {
    let (at, bytes) = (number::<8>(entry, 8), number::<8>(entry, 32));
    let end = at.checked_add(bytes).filter(|end| *end <= file_bytes);
    let end = end.ok_or("a segment is outside the file; it is cut short")?;
    let (begin, memory_bytes) = (number::<8>(entry, 16), number::<8>(entry, 40));
    let memory_end = begin.checked_add(memory_bytes).filter(|end| *end <= ADDRESS_MAX && memory_bytes >= bytes);
    let flags = number::<4>(entry, 4);
    Ok(Segment {
        file: at..end,
        memory: begin..memory_end.ok_or("a segment takes less memory than it has in the file, or far too much")?,
        is_writable: flags & WRITABLE != 0,
        is_executable: flags & EXECUTABLE != 0,
    })
}

/// The little-endian number of `N` bytes at `at`, which lies inside `bytes`.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + N].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
