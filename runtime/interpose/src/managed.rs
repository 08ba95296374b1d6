//! Managed memory: the program and the device use it at the same addresses, one after the other.
//!
//! It has the rules of devices without `concurrentManagedAccess`. While the device may use it, from
//! a launch until the program has waited, the program cannot: its pages are without access, and a
//! program that touches them faults as on such a device. Before a launch, pages that the program has
//! changed are copied to the device. When the program has waited, this library waits for all work of
//! the session and copies the memory back.
//!
//! The addresses are those that `reserved` keeps free in the program, so they are the device's.

use crate::arguments::Place;
use crate::shim::Shim;
use atoll_session::{Code, HostCopy, Span};
use std::collections::BTreeMap;

/// The size of a page, and the alignment of managed memory.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// An allocation of managed memory.
#[derive(Debug)]
struct Block {
    /// A multiple of the page size.
    bytes: u64,
    /// What the device has; empty if that is not known.
    on_device: Vec<u8>,
}

/// All managed memory.
#[derive(Debug, Default)]
pub(crate) struct Managed {
    /// By address.
    blocks: BTreeMap<u64, Block>,
    /// Whether the device may use the memory, so that the program has no access.
    is_on_device: bool,
    /// Whether the addresses of the session's memory are free in the program.
    is_reserved: bool,
}

impl Managed {
    pub(crate) fn new(is_reserved: bool) -> Managed {
        Managed { is_reserved, ..Managed::default() }
    }

    /// Whether there can be managed memory.
    pub(crate) fn is_available(&self) -> bool {
        self.is_reserved
    }

    /// Whether an address is of managed memory.
    pub(crate) fn holds(&self, at: u64) -> bool {
        self.blocks.range(..=at).next_back().is_some_and(|(start, block)| at - start < block.bytes)
    }

    /// Whether a range lies in one allocation.
    pub(crate) fn contains(&self, at: u64, bytes: u64) -> bool {
        let found = self.blocks.range(..=at).next_back().map(|(start, block)| Span { at: *start, bytes: block.bytes });
        found.is_some_and(|block| block.contains(Span { at, bytes }))
    }

    fn spans(&self) -> Vec<Span> {
        self.blocks.iter().map(|(at, block)| Span { at: *at, bytes: block.bytes }).collect()
    }

    /// Sets the program's access to all blocks.
    fn protect(&self, access: i32) -> Result<(), Code> {
        self.spans().into_iter().try_for_each(|span| protect(span, access))
    }
}

impl Shim {
    /// Allocates managed memory, which is zero.
    pub(crate) fn allocate_managed(&mut self, context: u32, bytes: u64) -> Result<u64, Code> {
        if !self.managed.is_available() {
            return Err(Code::NOT_SUPPORTED);
        }
        // The program may use the new memory at once.
        self.managed_to_host()?;
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
        let at = self.client.allocate_at(context, bytes, PAGE_BYTES)?;
        if let Err(code) = protect(Span { at, bytes }, libc::PROT_READ | libc::PROT_WRITE) {
            self.client.free(at)?;
            return Err(code);
        }
        self.managed.blocks.insert(at, Block { bytes, on_device: Vec::new() });
        Ok(at)
    }

    /// Memory was freed, which may be no managed memory.
    pub(crate) fn managed_freed(&mut self, at: u64) {
        if let Some(block) = self.managed.blocks.remove(&at) {
            release(Span { at, bytes: block.bytes });
        }
    }

    /// Memory was freed for which the client knows no allocation.
    pub(crate) fn forget_managed(&mut self) {
        for span in self.managed.spans() {
            if self.client.find(span.at).is_none() {
                self.managed_freed(span.at);
            }
        }
    }

    /// Gives managed memory to the device before work that may use it: copies what the program has
    /// changed.
    pub(crate) fn managed_to_device(&mut self) -> Result<(), Code> {
        if self.managed.is_on_device || self.managed.blocks.is_empty() {
            return Ok(());
        }
        for (at, block) in &mut self.managed.blocks {
            let now = Place::at(*at).bytes(block.bytes)?;
            let is_known = !block.on_device.is_empty();
            let mut start = 0;
            // Neighbouring pages go in one copy.
            while start < now.len() {
                let is_same = |start: usize| {
                    let page = start..start + PAGE_BYTES as usize;
                    is_known && now[page.clone()] == block.on_device[page]
                };
                let mut end = start;
                while end < now.len() && !is_same(end) {
                    end += PAGE_BYTES as usize;
                }
                if end > start {
                    // Work in every stream sees a copy in the default stream.
                    self.client.copy_in(0, at + start as u64, &now[start..end])?;
                }
                start = end + PAGE_BYTES as usize;
            }
            block.on_device.clear();
            block.on_device.extend_from_slice(now);
        }
        // If not all blocks could be protected, the next wait gives back those that were.
        self.managed.is_on_device = true;
        self.managed.protect(libc::PROT_NONE)
    }

    /// Gives managed memory to the device if an address is in it.
    pub(crate) fn use_managed(&mut self, at: u64) -> Result<(), Code> {
        if self.managed.holds(at) { self.managed_to_device() } else { Ok(()) }
    }

    /// Gives managed memory back to the program after it has waited: waits for all work, and copies
    /// the memory.
    ///
    /// # Errors
    /// Of the work. The program has access in any case; the contents are those of before the work if
    /// the session is broken.
    pub(crate) fn managed_to_host(&mut self) -> Result<(), Code> {
        if !self.managed.is_on_device {
            return Ok(());
        }
        let waited = self.client.synchronize();
        self.managed.protect(libc::PROT_READ | libc::PROT_WRITE)?;
        self.managed.is_on_device = false;
        // Until the copies are complete, nothing is known of the device's contents.
        self.managed.blocks.values_mut().for_each(|block| block.on_device.clear());
        self.client.check()?;
        for Span { at, bytes } in self.managed.spans() {
            self.client.copy_out(0, HostCopy { to: at, bytes }, at)?;
        }
        self.client.complete_copies()?;
        for (at, block) in &mut self.managed.blocks {
            block.on_device.extend_from_slice(Place::at(*at).bytes(block.bytes)?);
        }
        waited
    }

    /// The program has waited for work, with this result.
    pub(crate) fn waited(&mut self, result: Result<(), Code>) -> Result<(), Code> {
        let returned = self.managed_to_host();
        result.and(returned)
    }
}

/// Sets the program's access to whole pages of a block.
fn protect(span: Span, access: i32) -> Result<(), Code> {
    let start = std::ptr::with_exposed_provenance_mut(span.at as usize);
    // SAFETY: the pages are reserved for the session's memory, and only the program uses them, which
    // knows the rules of managed memory.
    let failed = unsafe { libc::mprotect(start, span.bytes as usize, access) } != 0;
    if failed { Err(Code::OPERATING_SYSTEM) } else { Ok(()) }
}

/// Gives the pages of a freed block back to the system and keeps the addresses reserved. If that
/// fails, the pages stay as they are.
fn release(span: Span) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let start = std::ptr::with_exposed_provenance_mut(span.at as usize);
    // SAFETY: the program has freed the block, whose pages are replaced.
    unsafe { libc::mmap(start, span.bytes as usize, libc::PROT_NONE, flags, -1, 0) };
}
