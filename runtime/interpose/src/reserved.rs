//! Reserves the addresses of device memory in this process. Calls such as `cuMemcpy` decide by the
//! address whether memory is the device's, so no memory of the program may have one of these
//! addresses.

use atoll_session::Span;

/// The size of a page.
const PAGE_BYTES: u64 = 4096;

/// Maps the addresses without access, so that nothing else in the process gets them. The error is
/// the system's: the program may already use some of the addresses.
pub(crate) fn reserve(memory: Span) -> std::io::Result<()> {
    let at = memory.at.next_multiple_of(PAGE_BYTES);
    let bytes = memory.at.saturating_add(memory.bytes).saturating_sub(at) / PAGE_BYTES * PAGE_BYTES;
    let (Ok(start), Ok(length)) = (usize::try_from(at), usize::try_from(bytes)) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the flag prevents the mapping from replacing another one, and nothing refers to
    // addresses that were free.
    let got = unsafe { libc::mmap(std::ptr::without_provenance_mut(start), length, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    if got.addr() != start {
        // Linux before 4.17 ignores the flag and has chosen other addresses.
        // SAFETY: this is the mapping from above, and nothing uses it.
        unsafe { libc::munmap(got, length) };
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    Ok(())
}
