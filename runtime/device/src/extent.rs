//! Constants in memory files of their own, and the address range in which kernels see them.
//!
//! A process that has a descriptor of a file can map all of the file. Each constant therefore has a
//! file of its own, so that a process can map some constants and not others. The engine writes
//! through the file descriptor and maps nothing, since writing to pages not yet allocated is faster
//! that way.

use crate::shm::Mapping;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// From this size on, a background thread frees the memory: below, freeing takes no longer than
/// handing it over.
const DISCARD_BYTES_MIN: u64 = 256 << 10;

/// The memory of one constant; bytes that were never written are zero.
#[derive(Debug)]
pub struct Extent {
    file: OwnedFd,
    bytes: u64,
}

impl Extent {
    /// Allocates zeroed memory.
    pub fn create(bytes: u64) -> std::io::Result<Extent> {
        let file = rustix::fs::memfd_create("atoll-constant", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes)?;
        Ok(Extent { file, bytes })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor that allows reading only.
    pub fn read_only(&self) -> std::io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Writes at an offset.
    pub fn write(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        whole(bytes.len(), |done| rustix::io::pwrite(&self.file, &bytes[done..], at + done as u64))
    }

    /// Reads at an offset.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        whole(bytes.len(), |done| rustix::io::pread(&self.file, &mut bytes[done..], at + done as u64))
    }
}

impl Drop for Extent {
    /// Frees the memory even if other processes still have it mapped.
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::ftruncate(&self.file, 0) {
            tracing::error!(%error, bytes = self.bytes, "the memory of a constant cannot be given back");
        }
    }
}

/// Frees the memory of a constant, on a background thread if it is large: 100 MB take milliseconds.
pub fn discard(extent: Extent) {
    static DISCARDED: OnceLock<Option<Sender<Extent>>> = OnceLock::new();
    let begin = || {
        let (discarded, inbox) = channel();
        let thread = std::thread::Builder::new().name("atoll-discard".to_owned());
        // Each extent is dropped, and so freed, as it is received.
        thread.spawn(move || inbox.into_iter().for_each(drop)).ok().map(|_| discarded)
    };
    if extent.bytes >= DISCARD_BYTES_MIN
        && let Some(discarded) = DISCARDED.get_or_init(begin)
    {
        // If there is no thread, the failed send drops the extent here.
        let _ = discarded.send(extent);
    }
}

/// Repeats a call that may transfer fewer bytes than asked for.
fn whole(bytes: usize, mut call: impl FnMut(usize) -> rustix::io::Result<usize>) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match call(done) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The address range in which kernels find constants. Reading a part that is not mapped faults, and
/// so does every store. It is aligned to its size, as a [`crate::shm::Region`] is.
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
}

impl Window {
    /// Reserves addresses for `bytes` bytes.
    pub fn reserve(bytes: u64) -> std::io::Result<Window> {
        Ok(Window { mapping: Mapping::reserve(bytes)? })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// The address of an offset in this process; one past the end is allowed, as for any array.
    pub fn address(&self, at: u64) -> Option<u64> {
        self.mapping.address(at)
    }

    /// Maps the memory of a constant at an offset.
    pub fn show(&self, at: u64, bytes: u64, file: BorrowedFd<'_>) -> std::io::Result<()> {
        // SAFETY: only kernels access a window, and no references into it exist.
        unsafe { self.mapping.show(at, bytes, file, ProtFlags::READ) }
    }

    /// Unmaps the memory of a constant.
    pub fn hide(&self, at: u64, bytes: u64) -> std::io::Result<()> {
        // SAFETY: as for `show`.
        unsafe { self.mapping.hide(at, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tests::is_readable;
    use rustix::mm::MprotectFlags;
    use std::os::fd::AsFd;

    const PAGE: u64 = 4096;

    /// Reads a byte as a kernel would.
    fn byte(window: &Window, at: u64) -> u8 {
        let byte = std::ptr::with_exposed_provenance::<u8>(window.address(at).unwrap() as usize);
        // SAFETY: inside the range that the test maps.
        unsafe { byte.read_volatile() }
    }

    fn is_shown(window: &Window, at: u64) -> bool {
        is_readable(window.address(at).unwrap())
    }

    #[test]
    fn only_mapped_constants_are_readable_and_none_is_writable() {
        let window = Window::reserve(16 * PAGE).unwrap();
        let extent = Extent::create(2 * PAGE).unwrap();
        extent.write(PAGE + 5, &[7]).unwrap();
        let file = extent.read_only().unwrap();
        window.show(4 * PAGE, 2 * PAGE, file.as_fd()).unwrap();
        assert_eq!((byte(&window, 5 * PAGE + 5), byte(&window, 4 * PAGE)), (7, 0));
        extent.write(PAGE + 5, &[8]).unwrap();
        assert_eq!(byte(&window, 5 * PAGE + 5), 8);
        let shown = |window: &Window| (0..16).filter(|page| is_shown(window, page * PAGE)).collect::<Vec<_>>();
        assert_eq!(shown(&window), [4, 5]);
        let page = std::ptr::with_exposed_provenance_mut(window.address(4 * PAGE).unwrap() as usize);
        // SAFETY: asks for more access than the descriptor allows; the call fails and changes
        // nothing.
        assert!(unsafe { rustix::mm::mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::WRITE) }.is_err());
        assert!(rustix::io::pwrite(&file, &[1], 0).is_err() && rustix::fs::ftruncate(&file, 0).is_err());
        window.hide(4 * PAGE, 2 * PAGE).unwrap();
        assert!(shown(&window).is_empty());
        for (at, bytes) in [(1, PAGE), (16 * PAGE, PAGE), (15 * PAGE, 2 * PAGE), (u64::MAX - PAGE + 1, PAGE), (0, 0)] {
            assert!(
                window.show(at, bytes, file.as_fd()).is_err() && window.hide(at, bytes).is_err(),
                "{bytes} at {at}"
            );
        }
    }

    #[test]
    fn freed_memory_is_gone_for_processes_that_kept_a_descriptor() {
        let window = Window::reserve(PAGE).unwrap();
        let extent = Extent::create(PAGE).unwrap();
        extent.write(0, &[7; 4096]).unwrap();
        let kept = extent.read_only().unwrap();
        window.show(0, PAGE, kept.as_fd()).unwrap();
        assert_eq!((byte(&window, 9), rustix::fs::fstat(&kept).unwrap().st_blocks), (7, 8));
        drop(extent);
        assert_eq!(rustix::fs::fstat(&kept).unwrap().st_blocks, 0);
        assert!(!is_shown(&window, 0) && rustix::io::pread(&kept, &mut [0; 1], 0).unwrap() == 0);
    }
}
