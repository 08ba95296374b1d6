//! Memory shared between processes: a memfd, mapped once, accessed through checked offsets.
//!
//! Memory that the other side may touch at the same time is accessed through atomics, so a
//! misbehaving peer can supply wrong values but cannot cause undefined behaviour. Bulk copies
//! ([`Region::read`], [`Region::write`], [`Region::fill`]) are for bytes that no other thread
//! touches at that moment; the rings and the engine ensure that.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The unit in which `stat` counts the memory of a file, in bytes.
const STAT_BLOCK_BYTES: u64 = 512;

/// An offset and a length outside a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at offset {at:#x} do not fit into {region_bytes} bytes")]
pub struct OutOfRange {
    /// The offset.
    pub at: u64,
    /// The length.
    pub bytes: u64,
    /// The size of the region.
    pub region_bytes: u64,
}

/// A mapped memfd. Pages are allocated when first touched. The address is a multiple of the size
/// rounded up to a power of two, and the rest of that range stays empty, as fenced kernels require.
/// A subrange whose offset is aligned to its size therefore has an aligned address too.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    fd: OwnedFd,
}

/// A reserved address range: its size is a power of two, and it is aligned to its size. The part
/// behind the used bytes stays empty.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    span: usize,
}

// SAFETY: a mapping belongs to its owner until it is dropped and is not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access hands out atomics; bulk copies go through raw pointers and never form
// references to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves an empty range for `bytes` bytes: maps twice the size, keeps the aligned part and
    /// unmaps the rest.
    pub(crate) fn reserve(bytes: u64) -> std::io::Result<Mapping> {
        Mapping::reserve_within(bytes, bytes, None)
    }

    /// Like [`Mapping::reserve`], in a range that is large enough for `span_bytes` bytes. The range
    /// is at the address `wanted` if that is a multiple of its size and the addresses are free.
    fn reserve_within(bytes: u64, span_bytes: u64, wanted: Option<u64>) -> std::io::Result<Mapping> {
        let out_of_memory = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let span = usize::try_from(span_bytes.max(bytes)).map_err(|_| out_of_memory())?;
        let bytes = usize::try_from(bytes).map_err(|_| out_of_memory())?;
        let page = rustix::param::page_size();
        let span = span.checked_next_power_of_two().ok_or_else(out_of_memory)?.max(page);
        let wanted = wanted.and_then(|at| usize::try_from(at).ok()).filter(|at| at.is_multiple_of(span));
        if let Some(base) = wanted.and_then(|at| reserve_at(at, span)) {
            return Ok(Mapping { base, bytes, span });
        }
        let reserved = span.checked_mul(2).ok_or_else(out_of_memory)?;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses; nothing refers to it yet.
        let start = unsafe {
            rustix::mm::mmap_anonymous(nowhere, reserved, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let before = start.addr().next_multiple_of(span) - start.addr();
        let base = start.wrapping_byte_add(before);
        for (at, bytes) in [(start, before), (base.wrapping_byte_add(span), reserved - before - span)] {
            if bytes > 0 {
                // SAFETY: an unused part of the reservation.
                let _ = unsafe { rustix::mm::munmap(at, bytes) };
            }
        }
        Ok(Mapping { base: NonNull::new(base.cast::<u8>()).ok_or_else(out_of_memory)?, bytes, span })
    }

    /// Maps a file from its beginning, replacing what was mapped there.
    ///
    /// # Safety
    /// No references into this part exist. Accesses behind the end of the file fault.
    pub(crate) unsafe fn show(
        &self,
        at: u64,
        bytes: u64,
        file: BorrowedFd<'_>,
        protection: ProtFlags,
    ) -> std::io::Result<()> {
        let (to, bytes) = self.pages(at, bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: it replaces a part of this mapping, which we own; the caller guarantees the rest.
        unsafe { rustix::mm::mmap(to, bytes, protection, flags, file, 0)? };
        Ok(())
    }

    /// Unmaps a part: accesses to it fault from now on.
    ///
    /// # Safety
    /// No references into this part exist.
    pub(crate) unsafe fn hide(&self, at: u64, bytes: u64) -> std::io::Result<()> {
        let (to, bytes) = self.pages(at, bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as for `show`.
        unsafe { rustix::mm::mmap_anonymous(to, bytes, ProtFlags::empty(), flags)? };
        Ok(())
    }

    fn pages(&self, at: u64, bytes: u64) -> std::io::Result<(*mut c_void, usize)> {
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes());
        if !is_inside || bytes == 0 || !at.is_multiple_of(rustix::param::page_size() as u64) {
            let what = format!("{bytes} bytes at {at:#x} are not whole pages inside a mapping of {} bytes", self.bytes);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        }
        Ok((self.base.as_ptr().wrapping_add(at as usize).cast::<c_void>(), bytes as usize))
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The address of an offset; one past the end is allowed.
    pub(crate) fn address(&self, at: u64) -> Option<u64> {
        (at <= self.bytes as u64).then(|| self.base.as_ptr() as u64 + at)
    }
}

/// Reserves these addresses if all of them are free.
fn reserve_at(at: usize, span: usize) -> Option<NonNull<u8>> {
    let wanted = std::ptr::without_provenance_mut(at);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces nothing; nothing refers to it yet.
    let start = unsafe { rustix::mm::mmap_anonymous(wanted, span, ProtFlags::empty(), flags) }.ok()?;
    if start.addr() != at {
        // A kernel older than Linux 4.17 ignores the flag and may map elsewhere.
        // SAFETY: the mapping was made above.
        let _ = unsafe { rustix::mm::munmap(start, span) };
        return None;
    }
    NonNull::new(start.cast::<u8>())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we own the mapping, and no borrow of it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.span) };
    }
}

impl Region {
    /// Creates a zeroed region of `bytes` bytes. Its size is sealed, so that no peer can shrink it
    /// while it is in use.
    pub fn create(name: &str, bytes: u64) -> std::io::Result<Region> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::attach(fd)
    }

    /// Maps a region that another process created. Fails if its size is not sealed.
    pub fn attach(fd: OwnedFd) -> std::io::Result<Region> {
        Region::attach_within(fd, 0, None)
    }

    /// Like [`Region::attach`], in an otherwise empty range that is large enough for `span_bytes`
    /// bytes, for fences of that size. The range is at the address `wanted` if that is a multiple
    /// of its size and these addresses are free.
    pub fn attach_within(fd: OwnedFd, span_bytes: u64, wanted: Option<u64>) -> std::io::Result<Region> {
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "the size of the memory is not sealed"));
        }
        let bytes = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        let mapping = Mapping::reserve_within(bytes, span_bytes, wanted)?;
        // SAFETY: nothing refers to the mapping yet; the size seal keeps its pages valid.
        unsafe { mapping.show(0, mapping.bytes(), fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)? };
        Ok(Region { mapping, fd })
    }

    /// Asks for huge pages; without effect if the system has none for shared memory.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the range is our own mapping; the advice does not change its contents.
        let _ = unsafe {
            rustix::mm::madvise(self.mapping.base.as_ptr().cast::<c_void>(), self.mapping.bytes, Advice::LinuxHugepage)
        };
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Bytes of memory that the operating system has assigned to the region: pages that a process
    /// has touched and that have not been given back since.
    pub fn resident_bytes(&self) -> std::io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_blocks).unwrap_or_default() * STAT_BLOCK_BYTES)
    }

    /// The address of an offset in this process; one past the end is allowed.
    pub fn address(&self, at: u64) -> Option<u64> {
        self.mapping.address(at)
    }

    /// The 32-bit word at an offset; `None` if the offset is outside or not a multiple of 4.
    pub fn word(&self, at: u64) -> Option<&AtomicU32> {
        let pointer = self.aligned(at, 4, 4)?;
        // SAFETY: inside the mapping, aligned, any bits are a u32, and it lives as long as `self`.
        Some(unsafe { pointer.cast::<AtomicU32>().as_ref() })
    }

    /// `count` 64-bit words from an offset; `None` if outside or not a multiple of 8.
    pub fn words(&self, at: u64, count: usize) -> Option<&[AtomicU64]> {
        let pointer = self.aligned(at, (count as u64).checked_mul(8)?, 8)?;
        // SAFETY: as for `word`, for all `count` words.
        Some(unsafe { std::slice::from_raw_parts(pointer.cast::<AtomicU64>().as_ptr(), count) })
    }

    /// `count` bytes from an offset; `None` if outside.
    pub fn atomic_bytes(&self, at: u64, count: u64) -> Option<&[AtomicU8]> {
        let pointer = self.aligned(at, count, 1)?;
        // SAFETY: as for `word`, for all `count` bytes.
        Some(unsafe { std::slice::from_raw_parts(pointer.cast::<AtomicU8>().as_ptr(), count as usize) })
    }

    /// Copies bytes into the region.
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.checked(at, from.len() as u64)?;
        // SAFETY: both ranges are valid for `from.len()` bytes, and no reference into the region's
        // bytes exists that the source could overlap.
        unsafe { crate::stream::copy(from.as_ptr(), to.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies bytes out of the region.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.checked(at, to.len() as u64)?;
        // SAFETY: as for `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes from a region, which may be this one; the ranges may overlap.
    pub fn copy_from(&self, at: u64, source: &Region, from: u64, bytes: u64) -> Result<(), OutOfRange> {
        let (from, to) = (source.checked(from, bytes)?, self.checked(at, bytes)?);
        // SAFETY: both ranges were checked, and no reference into a region's bytes exists.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), bytes as usize) };
        Ok(())
    }

    /// Sets `bytes` bytes to `value`.
    pub fn fill(&self, at: u64, value: u8, bytes: u64) -> Result<(), OutOfRange> {
        let to = self.checked(at, bytes)?;
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(to.as_ptr(), value, bytes as usize) };
        Ok(())
    }

    /// Whether a range lies inside the region.
    pub fn check(&self, at: u64, bytes: u64) -> Result<(), OutOfRange> {
        self.checked(at, bytes).map(|_| ())
    }

    /// Returns pages to the system; the whole range reads as zero afterwards. Reading allocates
    /// pages again.
    pub fn give_back(&self, at: u64, bytes: u64) -> std::io::Result<()> {
        let outside = |error: OutOfRange| std::io::Error::new(std::io::ErrorKind::InvalidInput, error);
        self.check(at, bytes).map_err(outside)?;
        let (page, end) = (rustix::param::page_size() as u64, at + bytes);
        let (first, last) = (at.next_multiple_of(page), end / page * page);
        if first >= last {
            return self.fill(at, 0, bytes).map_err(outside);
        }
        self.fill(at, 0, first - at).map_err(outside)?;
        self.fill(last, 0, end - last).map_err(outside)?;
        Ok(rustix::fs::fallocate(
            &self.fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            first,
            last - first,
        )?)
    }

    fn aligned(&self, at: u64, bytes: u64, align: u64) -> Option<NonNull<u8>> {
        if at.is_multiple_of(align) { self.checked(at, bytes).ok() } else { None }
    }

    fn checked(&self, at: u64, bytes: u64) -> Result<NonNull<u8>, OutOfRange> {
        match at.checked_add(bytes) {
            // SAFETY: `at` is at most the mapping's size.
            Some(end) if end <= self.bytes() => Ok(unsafe { self.mapping.base.add(at as usize) }),
            _ => Err(OutOfRange { at, bytes, region_bytes: self.bytes() }),
        }
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn offsets_are_checked() {
        let region = Region::create("test", 4096).unwrap();
        assert!(region.word(4092).is_some());
        assert!(region.word(4096).is_none());
        assert!(region.word(2).is_none());
        assert!(region.words(8, 511).is_some());
        assert!(region.words(8, 512).is_none());
        assert!(region.words(0, usize::MAX).is_none());
        assert!(region.address(4096).is_some());
        assert!(region.address(4097).is_none());
        assert_eq!(region.fill(u64::MAX, 0, 2).unwrap_err().at, u64::MAX);
        assert!(region.write(4095, &[1, 2]).is_err());
        region.write(4095, &[1]).unwrap();
        let mut byte = [0];
        region.read(4095, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        region.copy_from(4094, &region, 4095, 1).unwrap();
        region.read(4094, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        assert!(region.copy_from(4095, &region, 0, 2).is_err() && region.copy_from(0, &region, 4095, 2).is_err());
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let ours = Region::create("test", 4096).unwrap();
        let theirs = Region::attach(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        ours.word(64).unwrap().store(7, Relaxed);
        assert_eq!(theirs.word(64).unwrap().load(Relaxed), 7);
        assert_ne!(ours.address(0), theirs.address(0));
    }

    /// Whether a byte can be read, tested without causing a fault.
    pub(crate) fn is_readable(address: u64) -> bool {
        let (_read, write) = std::io::pipe().unwrap();
        let byte = std::ptr::with_exposed_provenance::<c_void>(address as usize);
        // SAFETY: the kernel reads the byte or returns an error.
        unsafe { libc::write(write.as_raw_fd(), byte, 1) == 1 }
    }

    #[test]
    fn a_region_may_be_alone_in_a_larger_range() {
        let ours = Region::create("test", 8192).unwrap();
        let fd = || ours.as_fd().try_clone_to_owned().unwrap();
        let wanted = crate::space::MEMORY_ADDRESS + (1 << 43);
        let theirs = Region::attach_within(fd(), (1 << 20) + 1, Some(wanted)).unwrap();
        assert_eq!(theirs.address(0), Some(wanted));
        let taken = Region::attach_within(fd(), (1 << 20) + 1, Some(wanted)).unwrap();
        assert_ne!(taken.address(0), Some(wanted), "the addresses are not free");
        let theirs = Region::attach_within(fd(), (1 << 20) + 1, None).unwrap();
        let begin = theirs.address(0).unwrap();
        assert!(begin.is_multiple_of(2 << 20) && theirs.bytes() == 8192);
        assert!(is_readable(begin + 8191) && !is_readable(begin + 8192) && !is_readable(begin + (2 << 20) - 1));
        assert!(theirs.word(8192).is_none());
    }

    #[test]
    fn a_region_is_aligned_to_its_size_and_alone_in_its_range() {
        for bytes in [1_u64, 4096, 5000, 3 << 20, 1 << 30, (1 << 30) + 1] {
            let region = Region::create("test", bytes).unwrap();
            let (begin, span) = (region.address(0).unwrap(), bytes.next_power_of_two().max(4096));
            assert!(begin.is_multiple_of(span), "{bytes}");
            region.write(bytes - 1, &[1]).unwrap();
            let behind = (bytes.next_multiple_of(4096)..span).step_by((span / 16).next_multiple_of(4096) as usize);
            assert!(behind.clone().all(|at| !is_readable(begin + at)), "{bytes}");
            assert!(is_readable(begin + bytes - 1) && (behind.count() > 0) == (bytes.next_multiple_of(4096) < span));
        }
    }

    #[test]
    fn returned_pages_are_zero_and_take_no_memory() {
        let region = Region::create("test", 64 << 10).unwrap();
        let pages = || rustix::fs::fstat(&region).unwrap().st_blocks / 8;
        region.fill(0, 1, 64 << 10).unwrap();
        assert_eq!(pages(), 16);
        for (at, bytes, left) in [(100, 50, 16), (5000, 1000, 16), (8191, 8194, 14), (0, 64 << 10, 0)] {
            region.give_back(at, bytes).unwrap();
            // Counted before reading, which allocates pages again.
            assert_eq!(pages(), left, "{bytes} bytes at {at}");
            let mut seen = vec![9; bytes as usize];
            region.read(at, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == 0), "{bytes} bytes at {at}");
        }
        region.fill(0, 1, 12288).unwrap();
        region.give_back(4095, 4098).unwrap();
        let mut neighbours = [0; 2];
        region.read(4094, &mut neighbours[..1]).unwrap();
        region.read(8193, &mut neighbours[1..]).unwrap();
        assert_eq!(neighbours, [1, 1]);
        assert!(region.give_back(64 << 10, 1).is_err());
        region.give_back(64 << 10, 0).unwrap();
    }

    #[test]
    fn a_region_whose_size_is_not_sealed_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert!(Region::attach(fd).is_err());
    }
}
