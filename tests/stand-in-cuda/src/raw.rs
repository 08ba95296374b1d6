//! Memory by address: the reservation for device memory, and the accesses of copies, fills and
//! stream operations.

use crate::status::Status;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The page size of the system in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// From this size on, pages are replaced by new ones instead of being zeroed.
const EXCHANGED_BYTES_MIN: u64 = 1 << 20;

/// Reserved addresses; only allocated parts can be accessed.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: u64,
    bytes: u64,
}

impl Reservation {
    /// Reserves addresses without memory.
    pub(crate) fn new(bytes: u64) -> Result<Reservation, Status> {
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size(bytes)?, ProtFlags::empty(), flags()) };
        let base = base.map_err(|_| Status::OutOfMemory)?;
        Ok(Reservation { base: base as u64, bytes })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Maps new memory at whole pages.
    pub(crate) fn take(&self, at: u64, bytes: u64) -> Result<(), Status> {
        self.remap(at, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a file of at least this size at whole pages. Other processes may map it too.
    pub(crate) fn show(&self, at: u64, bytes: u64, file: &OwnedFd) -> Result<(), Status> {
        self.check(at, bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `remap`.
        let answer =
            unsafe { rustix::mm::mmap(address(at), size(bytes)?, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
        answer.map(drop).map_err(|_| Status::MapFailed)
    }

    /// Unmaps it: accesses fault from now on.
    pub(crate) fn give_back(&self, at: u64, bytes: u64) -> Result<(), Status> {
        self.remap(at, bytes, ProtFlags::empty())
    }

    fn remap(&self, at: u64, bytes: u64, access: ProtFlags) -> Result<(), Status> {
        self.check(at, bytes)?;
        // SAFETY: the pages are in our own reservation, and only kernels and copies of the program
        // under test use their addresses.
        let answer =
            unsafe { rustix::mm::mmap_anonymous(address(at), size(bytes)?, access, flags() | MapFlags::FIXED) };
        answer.map(drop).map_err(|_| Status::OutOfMemory)
    }

    fn check(&self, at: u64, bytes: u64) -> Result<(), Status> {
        let end = at.checked_add(bytes).ok_or(Status::InvalidValue)?;
        if at >= self.base && end <= self.end() { Ok(()) } else { Err(Status::InvalidValue) }
    }
}

fn flags() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}

fn size(bytes: u64) -> Result<usize, Status> {
    usize::try_from(bytes).map_err(|_| Status::OutOfMemory)
}

fn address(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}

/// A range of memory that is known to exist. For device memory the table of allocations proves it;
/// for other memory the program guarantees it. The memory stays until the operation that holds the
/// span is complete: device memory is only freed while the context is idle, and the driver's
/// reference requires the same of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    at: u64,
    bytes: u64,
    /// Whether it is in a [`Reservation`].
    is_own: bool,
}

/// A pattern for filling memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Pattern {
    /// Size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Pattern::Byte(_) => 1,
            Pattern::Half(_) => 2,
            Pattern::Word(_) => 4,
        }
    }
}

impl Span {
    /// # Safety
    /// The memory must be readable and writable until the span's last use.
    pub(crate) unsafe fn new(at: u64, bytes: u64) -> Span {
        Span { at, bytes, is_own: false }
    }

    /// # Safety
    /// It must be in a [`Reservation`].
    pub(crate) unsafe fn of_reservation(self) -> Span {
        Span { is_own: true, ..self }
    }

    /// Copies the memory into a vector.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        // SAFETY: the creator of the span guarantees the memory; the vector is new and has the same
        // size.
        unsafe {
            ptr::copy_nonoverlapping(address(self.at).cast::<u8>().cast_const(), bytes.as_mut_ptr(), bytes.len())
        };
        bytes
    }

    /// Writes as many bytes as fit.
    pub(crate) fn write(self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes as usize);
        // SAFETY: the creator of the span guarantees the memory.
        unsafe { ptr::copy(bytes.as_ptr(), address(self.at).cast::<u8>(), count) };
    }

    /// Copies from another span, up to the smaller size.
    pub(crate) fn copy_from(self, from: Span) {
        let count = self.bytes.min(from.bytes) as usize;
        if count == size_of::<u32>()
            && let (Some(to), Some(from)) = (self.word(), from.word())
        {
            // A word that a running kernel polls must be written atomically.
            to.store(from.load(Ordering::Acquire), Ordering::Release);
            return;
        }
        // SAFETY: the creators of the spans guarantee both; `copy` allows overlaps.
        unsafe { ptr::copy(address(from.at).cast::<u8>().cast_const(), address(self.at).cast::<u8>(), count) };
    }

    /// Fills the span.
    pub(crate) fn fill(self, pattern: Pattern) {
        let to = address(self.at);
        let count = (self.bytes / pattern.bytes()) as usize;
        match (pattern, self.word()) {
            (Pattern::Byte(0), _) => self.clear(),
            // SAFETY: the creator of the span guarantees the memory.
            (Pattern::Byte(value), _) => unsafe { ptr::write_bytes(to.cast::<u8>(), value, count) },
            (Pattern::Word(value), Some(word)) if count == 1 => word.store(value, Ordering::Release),
            (Pattern::Half(value), _) => {
                // SAFETY: as above; the entry points refuse unaligned addresses, and
                // `write_unaligned` accepts them.
                (0..count).for_each(|index| unsafe { to.cast::<u16>().add(index).write_unaligned(value) });
            }
            (Pattern::Word(value), _) => {
                // SAFETY: as above.
                (0..count).for_each(|index| unsafe { to.cast::<u32>().add(index).write_unaligned(value) });
            }
        }
    }

    /// Sets the span to zero. Whole pages of device memory are replaced by new ones, so that a
    /// program that clears a whole device does not allocate all its pages.
    fn clear(self) {
        let (begin, end) = (self.at.next_multiple_of(PAGE_BYTES), (self.at + self.bytes) / PAGE_BYTES * PAGE_BYTES);
        let is_exchanged = self.is_own && self.bytes >= EXCHANGED_BYTES_MIN
            // SAFETY: private pages without a file in our own reservation; the creator of the span
            // guarantees them.
            && unsafe { rustix::mm::madvise(address(begin), (end - begin) as usize, Advice::LinuxDontNeed) }.is_ok();
        let rest = if is_exchanged {
            [(self.at, begin), (end, self.at + self.bytes)]
        } else {
            [(self.at, self.at + self.bytes), (0, 0)]
        };
        for (from, to) in rest {
            // SAFETY: the creator of the span guarantees the memory.
            unsafe { ptr::write_bytes(address(from).cast::<u8>(), 0, (to - from) as usize) };
        }
    }

    /// The 32-bit word at its beginning; `None` if too short or unaligned.
    pub(crate) fn word(&self) -> Option<&AtomicU32> {
        let is_word = self.bytes >= 4 && self.at.is_multiple_of(4);
        // SAFETY: the creator of the span guarantees the memory, which is aligned; kernels access
        // it concurrently, by atomic or plain accesses.
        is_word.then(|| unsafe { AtomicU32::from_ptr(address(self.at).cast()) })
    }

    /// The 64-bit word at its beginning; `None` if too short or unaligned.
    pub(crate) fn long_word(&self) -> Option<&AtomicU64> {
        let is_word = self.bytes >= 8 && self.at.is_multiple_of(8);
        // SAFETY: as in `word`.
        is_word.then(|| unsafe { AtomicU64::from_ptr(address(self.at).cast()) })
    }
}
