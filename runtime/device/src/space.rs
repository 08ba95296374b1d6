//! The address space of the host device: memory that kernels write, and constants that they only
//! read.
//!
//! A [`DeviceOffset`] names a place in either: memory begins at 0, constants at [`CONSTANTS_BASE`].
//! The engine may write both. Each constant is a memory file of its own ([`ConstantStore`]). The
//! device's side maps the constants it may see, read-only ([`Window`]). So no kernel can change a
//! constant by a stray store, and if tenants have processes of their own, none can read another's
//! constants.

use crate::error::DeviceError;
use crate::extent::{Extent, Window};
use crate::shm::{OutOfRange, Region};
use atoll_core::{DeviceOffset, Epoch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Where constants begin: above all memory, and a multiple of the largest range, so that an aligned
/// offset gives an aligned address.
pub const CONSTANTS_BASE: DeviceOffset = DeviceOffset(1 << 46);

/// Most bytes of device memory, and of constants: 4 TiB. Aligned ranges of that size fit into the
/// 128 TiB of addresses that a process has.
pub const MEMORY_BYTES_MAX: u64 = 1 << 42;

/// Address at which an executor maps the memory of its domain, if the range is free. It is the same
/// in every executor, so that a CUDA session knows the addresses of its memory. It is a multiple of
/// the largest range and below the addresses that the system gives to libraries.
pub const MEMORY_ADDRESS: u64 = 1 << 45;

/// Creates device memory, zeroed; pages are allocated when first touched.
pub fn memory_region(bytes: u64) -> Result<Arc<Region>, DeviceError> {
    let region = Region::create("atoll-memory", bytes)
        .map_err(|source| DeviceError::Os { what: "reserve device memory", source })?;
    region.prefer_huge_pages();
    Ok(Arc::new(region))
}

/// Reserves the addresses where kernels find constants.
pub fn constants_window(bytes: u64) -> Result<Window, DeviceError> {
    Window::reserve(bytes).map_err(|source| DeviceError::Os { what: "reserve addresses for constants", source })
}

/// Chunk size of copies from or to a constant, in bytes.
const COPY_BYTES: usize = 1 << 20;

/// The address space as the engine sees it.
#[derive(Debug)]
pub struct EngineSpace {
    /// Memory that kernels read and write.
    pub memory: Arc<Region>,
    /// Memory that kernels only read.
    pub constants: ConstantStore,
}

impl EngineSpace {
    /// A place in the address space; its range is checked on access.
    pub fn place(&self, at: DeviceOffset) -> Place<'_> {
        self.constants.place(at).unwrap_or_else(|| Place::of_memory(&self.memory, at, at.0))
    }

    /// Stores an epoch word.
    pub fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        match self.memory.word(word.0) {
            Some(word) => word.store(epoch.0, Release),
            None => {
                tracing::error!(at = word.0, "cannot store an epoch: the word is outside device memory or not aligned")
            }
        }
    }
}

/// The constants of a device: a memory file for each, by the offset at which kernels find it.
#[derive(Debug)]
pub struct ConstantStore {
    bytes: u64,
    extents: BTreeMap<u64, Extent>,
}

impl ConstantStore {
    /// A store for up to `bytes` bytes of constants.
    pub fn new(bytes: u64) -> ConstantStore {
        ConstantStore { bytes, extents: BTreeMap::new() }
    }

    /// Allocates a constant in whole pages of its own.
    pub fn reserve(&mut self, at: DeviceOffset, bytes: u64) -> Result<&Extent, DeviceError> {
        let page = rustix::param::page_size() as u64;
        let outside = DeviceError::OutOfRange { at: at.0, bytes, memory_bytes: self.bytes };
        let Some(within) = at.0.checked_sub(CONSTANTS_BASE.0) else { return Err(outside) };
        let Some(end) = within.checked_add(bytes).filter(|end| *end <= self.bytes) else { return Err(outside) };
        let is_free =
            self.extents.range(..end).next_back().is_none_or(|(begin, extent)| begin + extent.bytes() <= within);
        if !is_free || bytes == 0 || !within.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(outside);
        }
        let extent = Extent::create(bytes).map_err(|source| DeviceError::Os { what: "allocate a constant", source })?;
        Ok(self.extents.entry(within).or_insert(extent))
    }

    /// Removes a constant and returns its memory; `None` if there is none.
    pub fn release(&mut self, at: DeviceOffset) -> Option<Extent> {
        self.extents.remove(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// The constant that begins at this offset.
    pub fn get(&self, at: DeviceOffset) -> Option<&Extent> {
        self.extents.get(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// A place in the range of constants, which need not belong to one; `None` if it is below.
    pub fn place(&self, at: DeviceOffset) -> Option<Place<'_>> {
        let within = at.0.checked_sub(CONSTANTS_BASE.0)?;
        Some(Place { part: Part::Constants(self), at, within })
    }

    /// The constant that contains a range, and the offset of the range in it.
    fn find(&self, within: u64, bytes: u64) -> Result<(&Extent, u64), OutOfRange> {
        let found = self.extents.range(..=within).next_back().map(|(begin, extent)| (extent, within - begin));
        let inside = found.filter(|(extent, at)| at.checked_add(bytes).is_some_and(|end| end <= extent.bytes()));
        inside.ok_or(OutOfRange { at: within, bytes, region_bytes: self.bytes })
    }
}

/// A place in a device's address space, for access by the engine.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    part: Part<'a>,
    /// The offset that the engine used.
    at: DeviceOffset,
    /// The offset in memory or in the constants.
    within: u64,
}

#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Memory(&'a Region),
    Constants(&'a ConstantStore),
}

impl<'a> Place<'a> {
    /// A place in memory; `at` is the offset to report in errors.
    pub fn of_memory(memory: &'a Region, at: DeviceOffset, within: u64) -> Place<'a> {
        Place { part: Part::Memory(memory), at, within }
    }

    /// Writes bytes. No launch in flight may touch them.
    pub fn write(self, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.write(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.write(at, bytes).map_err(|source| DeviceError::Os { what: "write a constant", source })
            }
        }
    }

    /// Reads bytes.
    pub fn read(self, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.read(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.read(at, bytes).map_err(|source| DeviceError::Os { what: "read a constant", source })
            }
        }
    }

    /// Copies to another place, in this or another address space.
    pub fn copy_to(self, to: Place<'_>, bytes: u64) -> Result<(), DeviceError> {
        if let (Part::Memory(source), Part::Memory(target)) = (self.part, to.part) {
            source.check(self.within, bytes).map_err(self.outside())?;
            return target.copy_from(to.within, source, self.within, bytes).map_err(to.outside());
        }
        self.check(bytes)?;
        to.check(bytes)?;
        let mut buffer = vec![0; COPY_BYTES.min(bytes as usize)];
        let mut done = 0;
        while done < bytes {
            let piece = &mut buffer[..COPY_BYTES.min((bytes - done) as usize)];
            self.behind(done).read(piece)?;
            to.behind(done).write(piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// Sets bytes to a value.
    pub fn fill(self, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.fill(self.within, value, bytes).map_err(self.outside()),
            Part::Constants(_) => {
                self.check(bytes)?;
                self.write(&vec![value; bytes as usize])
            }
        }
    }

    /// Returns pages to the system.
    pub fn give_back(self, bytes: u64) -> Result<(), DeviceError> {
        self.check(bytes)?;
        match self.part {
            Part::Memory(region) => region
                .give_back(self.within, bytes)
                .map_err(|source| DeviceError::Os { what: "return memory to the system", source }),
            // Constants are only freed as a whole.
            Part::Constants(_) => self.fill(0, bytes),
        }
    }

    fn check(self, bytes: u64) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.check(self.within, bytes),
            Part::Constants(store) => store.find(self.within, bytes).map(|_| ()),
        }
        .map_err(self.outside())
    }

    fn behind(self, bytes: u64) -> Place<'a> {
        Place { at: DeviceOffset(self.at.0 + bytes), within: self.within + bytes, ..self }
    }

    fn outside(self) -> impl Fn(OutOfRange) -> DeviceError {
        move |error| DeviceError::OutOfRange { at: self.at.0, bytes: error.bytes, memory_bytes: error.region_bytes }
    }
}
