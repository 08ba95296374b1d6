//! Constants in memory files of their own, and the range of addresses in which they are shown to
//! kernels.
//!
//! A file for each constant is what makes it possible to show one process some constants and not
//! others: who has a descriptor of a file can map all of it. The engine's side writes through the
//! file and maps nothing, since copying into fresh pages is faster so.

use crate::shm::Mapping;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// From this size on giving memory back is left to another thread: below, that takes as long as
/// telling it.
const DISCARD_BYTES_MIN: u64 = 256 << 10;

/// The memory of a constant; zero where nothing was written.
#[derive(Debug)]
pub struct Extent {
    file: OwnedFd,
    bytes: u64,
}

impl Extent {
    /// Takes memory, all zero.
    pub fn create(bytes: u64) -> std::io::Result<Extent> {
        let file = rustix::fs::memfd_create("atoll-constant", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes)?;
        Ok(Extent { file, bytes })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A descriptor with which it can be read and nothing else.
    pub fn read_only(&self) -> std::io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Writes inside of it.
    pub fn write(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        whole(bytes.len(), |done| rustix::io::pwrite(&self.file, &bytes[done..], at + done as u64))
    }

    /// Reads inside of it.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        whole(bytes.len(), |done| rustix::io::pread(&self.file, &mut bytes[done..], at + done as u64))
    }
}

impl Drop for Extent {
    /// Its memory goes back to the system although others may have it mapped still.
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::ftruncate(&self.file, 0) {
            tracing::error!(%error, bytes = self.bytes, "the memory of a constant cannot be given back");
        }
    }
}

/// Gives the memory of a constant back, on another thread where that takes long: a hundred
/// megabytes are milliseconds.
pub fn discard(extent: Extent) {
    static DISCARDED: OnceLock<Option<Sender<Extent>>> = OnceLock::new();
    let begin = || {
        let (discarded, inbox) = channel();
        let thread = std::thread::Builder::new().name("atoll-discard".to_owned());
        // Each is dropped as it is taken out.
        thread.spawn(move || inbox.into_iter().for_each(drop)).ok().map(|_| discarded)
    };
    if extent.bytes >= DISCARD_BYTES_MIN
        && let Some(discarded) = DISCARDED.get_or_init(begin)
    {
        // Without the thread it is dropped here.
        let _ = discarded.send(extent);
    }
}

/// Repeats a call that may do less than it is asked for.
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

/// The range of addresses in which kernels find constants: whatever is not shown faults when it is
/// touched, and so does every store. It is aligned to its size, as a [`crate::shm::Region`] is.
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
}

impl Window {
    /// Takes addresses for so many bytes.
    pub fn reserve(bytes: u64) -> std::io::Result<Window> {
        Ok(Window { mapping: Mapping::reserve(bytes)? })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// The address of an offset in this process; one past the end is allowed, as for any array.
    pub fn address(&self, at: u64) -> Option<u64> {
        self.mapping.address(at)
    }

    /// Shows the memory of a constant.
    pub fn show(&self, at: u64, bytes: u64, file: BorrowedFd<'_>) -> std::io::Result<()> {
        // SAFETY: nothing but kernels looks into a window, and they answer for their accesses themselves.
        unsafe { self.mapping.show(at, bytes, file, ProtFlags::READ) }
    }

    /// Takes it away.
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

    /// What kernels would read.
    fn byte(window: &Window, at: u64) -> u8 {
        let byte = std::ptr::with_exposed_provenance::<u8>(window.address(at).unwrap() as usize);
        // SAFETY: inside what the test shows.
        unsafe { byte.read_volatile() }
    }

    fn is_shown(window: &Window, at: u64) -> bool {
        is_readable(window.address(at).unwrap())
    }

    #[test]
    fn only_what_is_shown_is_there_and_it_cannot_be_made_writable() {
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
        // SAFETY: asks for more than the descriptor allows; nothing changes.
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
    fn what_is_given_back_is_gone_for_those_who_kept_it() {
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
