//! Memory by its address: the reservation that device memory is taken from, and what copies, fills,
//! waits and writes.

use crate::status::Status;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the system gives memory in.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// From this size on pages are exchanged for fresh ones rather than filled with zeros.
const EXCHANGED_BYTES_MIN: u64 = 1 << 20;

/// Addresses of our own, of which only what was taken can be accessed.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: u64,
    bytes: u64,
}

impl Reservation {
    /// Reserves addresses; no memory.
    pub(crate) fn new(bytes: u64) -> Result<Reservation, Status> {
        // SAFETY: a fresh mapping at an address of the system's choice.
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

    /// Puts fresh memory behind whole pages.
    pub(crate) fn take(&self, at: u64, bytes: u64) -> Result<(), Status> {
        self.remap(at, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Takes it away again: from now on accesses fault.
    pub(crate) fn give_back(&self, at: u64, bytes: u64) -> Result<(), Status> {
        self.remap(at, bytes, ProtFlags::empty())
    }

    fn remap(&self, at: u64, bytes: u64, access: ProtFlags) -> Result<(), Status> {
        let end = at.checked_add(bytes).ok_or(Status::InvalidValue)?;
        if at < self.base || end > self.end() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: the pages are those of our own reservation, and nobody but kernels and copies of the
        // program under test has their addresses.
        let answer =
            unsafe { rustix::mm::mmap_anonymous(address(at), size(bytes)?, access, flags() | MapFlags::FIXED) };
        answer.map(drop).map_err(|_| Status::OutOfMemory)
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

/// Memory that somebody vouches for: the table of allocations for device memory, the program for
/// its own. It stays until the work that holds the span is done: device memory is only given
/// back when the context is idle, and of a program's own memory the driver's reference asks the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    at: u64,
    bytes: u64,
    /// It lies in a [`Reservation`].
    is_own: bool,
}

/// A pattern that fills memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Pattern {
    /// Its size in bytes.
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
    /// The memory is there, and may be read and written, until the span's last use.
    pub(crate) unsafe fn new(at: u64, bytes: u64) -> Span {
        Span { at, bytes, is_own: false }
    }

    /// # Safety
    /// It lies in a [`Reservation`].
    pub(crate) unsafe fn of_reservation(self) -> Span {
        Span { is_own: true, ..self }
    }

    /// A copy of the memory.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        // SAFETY: whoever made the span vouches for the memory; the vector is fresh and as long.
        unsafe {
            ptr::copy_nonoverlapping(address(self.at).cast::<u8>().cast_const(), bytes.as_mut_ptr(), bytes.len())
        };
        bytes
    }

    /// Writes bytes, as many as fit.
    pub(crate) fn write(self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes as usize);
        // SAFETY: whoever made the span vouches for the memory.
        unsafe { ptr::copy(bytes.as_ptr(), address(self.at).cast::<u8>(), count) };
    }

    /// Copies from another span, as much as both have.
    pub(crate) fn copy_from(self, from: Span) {
        let count = self.bytes.min(from.bytes) as usize;
        if count == size_of::<u32>()
            && let (Some(to), Some(from)) = (self.word(), from.word())
        {
            // What a running kernel polls must not be torn.
            to.store(from.load(Ordering::Acquire), Ordering::Release);
            return;
        }
        // SAFETY: whoever made the spans vouches for both; `copy` allows that they overlap.
        unsafe { ptr::copy(address(from.at).cast::<u8>().cast_const(), address(self.at).cast::<u8>(), count) };
    }

    /// Fills the span.
    pub(crate) fn fill(self, pattern: Pattern) {
        let to = address(self.at);
        let count = (self.bytes / pattern.bytes()) as usize;
        match (pattern, self.word()) {
            (Pattern::Byte(0), _) => self.clear(),
            // SAFETY: whoever made the span vouches for the memory.
            (Pattern::Byte(value), _) => unsafe { ptr::write_bytes(to.cast::<u8>(), value, count) },
            (Pattern::Word(value), Some(word)) if count == 1 => word.store(value, Ordering::Release),
            (Pattern::Half(value), _) => {
                // SAFETY: as above; the entry points refuse what is not aligned, and `write_unaligned` would not
                // mind.
                (0..count).for_each(|index| unsafe { to.cast::<u16>().add(index).write_unaligned(value) });
            }
            (Pattern::Word(value), _) => {
                // SAFETY: as above.
                (0..count).for_each(|index| unsafe { to.cast::<u32>().add(index).write_unaligned(value) });
            }
        }
    }

    /// Makes it zero. Whole pages that are the driver's own are exchanged for fresh ones: a device
    /// that clears all its memory should not have the system find that memory.
    fn clear(self) {
        let (begin, end) = (self.at.next_multiple_of(PAGE_BYTES), (self.at + self.bytes) / PAGE_BYTES * PAGE_BYTES);
        let is_exchanged = self.is_own && self.bytes >= EXCHANGED_BYTES_MIN
            // SAFETY: pages of our own reservation, private and without a file; whoever made the span vouches for them.
            && unsafe { rustix::mm::madvise(address(begin), (end - begin) as usize, Advice::LinuxDontNeed) }.is_ok();
        let rest = if is_exchanged {
            [(self.at, begin), (end, self.at + self.bytes)]
        } else {
            [(self.at, self.at + self.bytes), (0, 0)]
        };
        for (from, to) in rest {
            // SAFETY: whoever made the span vouches for the memory.
            unsafe { ptr::write_bytes(address(from).cast::<u8>(), 0, (to - from) as usize) };
        }
    }

    /// The word at its beginning, where it has one and is aligned.
    pub(crate) fn word(&self) -> Option<&AtomicU32> {
        let is_word = self.bytes >= 4 && self.at.is_multiple_of(4);
        // SAFETY: whoever made the span vouches for the memory, which is aligned; kernels access it at the
        // same time, by atomic or plain accesses of their own.
        is_word.then(|| unsafe { AtomicU32::from_ptr(address(self.at).cast()) })
    }

    /// The long word at its beginning, where it has one and is aligned.
    pub(crate) fn long_word(&self) -> Option<&AtomicU64> {
        let is_word = self.bytes >= 8 && self.at.is_multiple_of(8);
        // SAFETY: as in `word`.
        is_word.then(|| unsafe { AtomicU64::from_ptr(address(self.at).cast()) })
    }
}
