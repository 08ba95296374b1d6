//! Pinned and registered memory of the program. The device does not access it; kernels get copies of
//! it, see `mapped`. Copies into it may stay recorded until the program waits.

use atoll_cuda_api::constants::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED};
use atoll_session::{Code, Span};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_uint;

/// Alignment of pinned memory in bytes: the page size.
const PAGE_BYTES: usize = 4096;

/// Accepted flags of pinned memory.
const FLAGS: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;

/// A range of the program's memory.
#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    flags: c_uint,
    /// Set if this library allocated it.
    layout: Option<Layout>,
}

/// All pinned and registered memory.
#[derive(Debug, Default)]
pub(crate) struct HostMemory(BTreeMap<u64, Block>);

impl HostMemory {
    /// Allocates zeroed pinned memory.
    pub(crate) fn allocate(&mut self, bytes: usize, flags: c_uint) -> Result<u64, Code> {
        if bytes == 0 || flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            return Err(Code::OUT_OF_MEMORY);
        }
        let at = at.expose_provenance() as u64;
        self.0.insert(at, Block { bytes: bytes as u64, flags, layout: Some(layout) });
        Ok(at)
    }

    /// Frees memory from [`HostMemory::allocate`].
    pub(crate) fn free(&mut self, at: u64) -> Result<(), Code> {
        let layout = self.0.get(&at).and_then(|block| block.layout).ok_or(Code::INVALID_VALUE)?;
        self.0.remove(&at);
        // SAFETY: allocated with this layout, and no longer in the table.
        unsafe { dealloc(std::ptr::with_exposed_provenance_mut(at as usize), layout) };
        Ok(())
    }

    /// Registers memory of the program.
    pub(crate) fn register(&mut self, at: u64, bytes: u64, flags: c_uint) -> Result<(), Code> {
        let end = at.checked_add(bytes).filter(|_| at != 0 && bytes > 0).ok_or(Code::INVALID_VALUE)?;
        if self.0.range(..end).next_back().is_some_and(|(before, block)| before + block.bytes > at) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.0.insert(at, Block { bytes, flags, layout: None });
        Ok(())
    }

    /// Removes registered memory from the table.
    pub(crate) fn unregister(&mut self, at: u64) -> Result<(), Code> {
        self.0.get(&at).filter(|block| block.layout.is_none()).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
        self.0.remove(&at);
        Ok(())
    }

    /// The memory that contains an address.
    pub(crate) fn block(&self, at: u64) -> Option<Span> {
        let (start, block) = self.0.range(..=at).next_back()?;
        (at - start < block.bytes).then_some(Span { at: *start, bytes: block.bytes })
    }

    /// Flags of the memory that contains an address.
    pub(crate) fn flags(&self, at: u64) -> Option<c_uint> {
        let (start, block) = self.0.range(..=at).next_back()?;
        (at - start < block.bytes).then_some(block.flags)
    }

    /// Whether the whole range is pinned or registered.
    pub(crate) fn holds(&self, at: u64, bytes: u64) -> bool {
        self.0
            .range(..=at)
            .next_back()
            .is_some_and(|(start, block)| at - start < block.bytes && bytes <= block.bytes - (at - start))
    }
}
