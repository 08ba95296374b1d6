//! The address space of a host device: memory that kernels change, and constants that they only
//! read.
//!
//! Both are found by one number, [`DeviceOffset`]: memory begins at 0, constants at
//! [`CONSTANTS_BASE`]. The engine's side may write to both. Each constant is a memory file of its
//! own ([`ConstantStore`]), of which the device's side maps those that it is shown, for reading
//! only ([`Window`]): so no kernel, however wild its stores, can spoil what others compute with,
//! and where tenants have processes of their own none can look at what belongs to others.

use crate::error::DeviceError;
use crate::extent::{Extent, Window};
use crate::shm::{OutOfRange, Region};
use atoll_core::{DeviceOffset, Epoch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Where constants begin: above all memory, and a multiple of the largest range, so that what is
/// aligned by its offset is so by its address.
pub const CONSTANTS_BASE: DeviceOffset = DeviceOffset(1 << 46);

/// Most memory of a device, and most room for constants, 4 TiB: ranges of that size find a place at
/// a multiple of it among the 128 TiB of addresses that a process has.
pub const MEMORY_BYTES_MAX: u64 = 1 << 42;

/// Takes device memory, all zero; pages are taken from the system when they are first touched.
pub fn memory_region(bytes: u64) -> Result<Arc<Region>, DeviceError> {
    let region = Region::create("atoll-memory", bytes)
        .map_err(|source| DeviceError::Os { what: "reserve device memory", source })?;
    region.prefer_huge_pages();
    Ok(Arc::new(region))
}

/// Takes addresses for constants, as kernels find them.
pub fn constants_window(bytes: u64) -> Result<Window, DeviceError> {
    Window::reserve(bytes).map_err(|source| DeviceError::Os { what: "reserve addresses for constants", source })
}

/// Bytes that are copied at a time where a constant is one end.
const COPY_BYTES: usize = 1 << 20;

/// The address space as the engine sees it.
#[derive(Debug)]
pub struct EngineSpace {
    /// Memory that kernels change.
    pub memory: Arc<Region>,
    /// Memory that they read.
    pub constants: ConstantStore,
}

impl EngineSpace {
    /// A place in it, which may lie outside.
    pub fn place(&self, at: DeviceOffset) -> Place<'_> {
        self.constants.place(at).unwrap_or_else(|| Place::of_memory(&self.memory, at, at.0))
    }

    /// Raises an epoch.
    pub fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        match self.memory.word(word.0) {
            Some(word) => word.store(epoch.0, Release),
            None => tracing::error!(at = word.0, "an epoch word outside the device's memory, or not aligned"),
        }
    }
}

/// The constants of a device: each a memory file of its own, under the offset at which kernels find
/// it.
#[derive(Debug)]
pub struct ConstantStore {
    bytes: u64,
    extents: BTreeMap<u64, Extent>,
}

impl ConstantStore {
    /// A store with so much room.
    pub fn new(bytes: u64) -> ConstantStore {
        ConstantStore { bytes, extents: BTreeMap::new() }
    }

    /// Takes memory for a constant, whole pages in which nothing else is.
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
        let extent =
            Extent::create(bytes).map_err(|source| DeviceError::Os { what: "take memory for a constant", source })?;
        Ok(self.extents.entry(within).or_insert(extent))
    }

    /// Gives its memory back; `None` if there is none.
    pub fn release(&mut self, at: DeviceOffset) -> Option<Extent> {
        self.extents.remove(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// What begins at this offset.
    pub fn get(&self, at: DeviceOffset) -> Option<&Extent> {
        self.extents.get(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// A place among the constants, which may be nobody's.
    pub fn place(&self, at: DeviceOffset) -> Option<Place<'_>> {
        let within = at.0.checked_sub(CONSTANTS_BASE.0)?;
        Some(Place { part: Part::Constants(self), at, within })
    }

    /// The memory of one constant that has a range, and where in it.
    fn find(&self, within: u64, bytes: u64) -> Result<(&Extent, u64), OutOfRange> {
        let found = self.extents.range(..=within).next_back().map(|(begin, extent)| (extent, within - begin));
        let inside = found.filter(|(extent, at)| at.checked_add(bytes).is_some_and(|end| end <= extent.bytes()));
        inside.ok_or(OutOfRange { at: within, bytes, region_bytes: self.bytes })
    }
}

/// A place in a device's address space, as the engine reaches it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    part: Part<'a>,
    /// As the engine named it.
    at: DeviceOffset,
    /// In its part.
    within: u64,
}

#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Memory(&'a Region),
    Constants(&'a ConstantStore),
}

impl<'a> Place<'a> {
    /// A place in memory that is named `at`.
    pub fn of_memory(memory: &'a Region, at: DeviceOffset, within: u64) -> Place<'a> {
        Place { part: Part::Memory(memory), at, within }
    }

    /// Writes, without a launch in flight that touches it.
    pub fn write(self, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.write(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.write(at, bytes).map_err(|source| DeviceError::Os { what: "write a constant", source })
            }
        }
    }

    /// Reads.
    pub fn read(self, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.read(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.read(at, bytes).map_err(|source| DeviceError::Os { what: "read a constant", source })
            }
        }
    }

    /// Copies to another place, in this address space or another one.
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

    /// Sets bytes.
    pub fn fill(self, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.fill(self.within, value, bytes).map_err(self.outside()),
            Part::Constants(_) => {
                self.check(bytes)?;
                self.write(&vec![value; bytes as usize])
            }
        }
    }

    /// Gives memory back to the system.
    pub fn give_back(self, bytes: u64) -> Result<(), DeviceError> {
        self.check(bytes)?;
        match self.part {
            Part::Memory(region) => region
                .give_back(self.within, bytes)
                .map_err(|source| DeviceError::Os { what: "give memory back", source }),
            // Constants are given back as wholes.
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
