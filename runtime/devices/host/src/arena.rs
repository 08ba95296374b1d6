//! Memory of one compute unit outside device memory: shared and scratch memory.

use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr::NonNull;

/// Page-aligned private memory that can grow, losing its contents.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the arena until it is dropped and is not tied to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// An arena of at least `bytes` bytes with all pages allocated.
    pub(crate) fn new(bytes: u32) -> std::io::Result<Arena> {
        let bytes = (bytes as usize).max(1).next_multiple_of(4096);
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        let base = NonNull::new(base).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        Ok(Arena { base, bytes })
    }

    /// Grows to at least `bytes` bytes. The contents are lost if that takes a new mapping.
    pub(crate) fn grow(&mut self, bytes: u32) -> std::io::Result<()> {
        if self.bytes < bytes as usize {
            *self = Arena::new(bytes)?;
        }
        Ok(())
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: we own the mapping. Its addresses are only passed to kernels, which run while the
        // arena is borrowed.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
    }
}
