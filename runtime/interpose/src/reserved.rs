//! Addresses of device memory, kept free in this process: a pointer of the program's own memory must
//! not look like one of the device's, since calls such as `cuMemcpy` decide by the address.

use atoll_session::Span;

/// The size of a page.
const PAGE_BYTES: u64 = 4096;

/// Maps addresses so that nothing else in the process gets them; they cannot be read or written. An
/// error says what the system answered: something of the program may lie there already.
pub(crate) fn reserve(memory: Span) -> std::io::Result<()> {
    let at = memory.at.next_multiple_of(PAGE_BYTES);
    let bytes = memory.at.saturating_add(memory.bytes).saturating_sub(at) / PAGE_BYTES * PAGE_BYTES;
    let (Ok(start), Ok(length)) = (usize::try_from(at), usize::try_from(bytes)) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag keeps the mapping from replacing another one, and nothing refers to what is
    // at addresses that were free.
    let got = unsafe { libc::mmap(std::ptr::without_provenance_mut(start), length, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if got.addr() != start {
        // A kernel before 4.17 does not know the flag and chose another place.
        // SAFETY: this is the mapping from above, and nothing uses it.
        unsafe { libc::munmap(got, length) };
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    Ok(())
}
