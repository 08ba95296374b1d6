//! The address space of a host device: memory that kernels change, and constants that they only read.
//!
//! Both are found by one number, [`DeviceOffset`]: memory begins at 0, constants at [`CONSTANTS_BASE`]. The engine's side may write to both. Each constant is a memory file of its own
//! ([`ConstantStore`]), of which the device's side maps those that it is shown, for reading only ([`Window`]): so no kernel, however wild its stores, can spoil what others compute with, and
//! where tenants have processes of their own none can look at what belongs to others.

use super::bounds::{self, Bounds};
use crate::DeviceError;
use crate::extent::{Extent, Window};
use crate::shm::{OutOfRange, Region};
use atoll_core::{DeviceOffset, Epoch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Where constants begin: above all memory, and a multiple of the largest range, so that what is aligned by its offset is so by its address.
pub const CONSTANTS_BASE: DeviceOffset = DeviceOffset(1 << 46);

/// Most memory of a device, and most room for constants, 4 TiB: ranges of that size find a place at a multiple of it among the 128 TiB of addresses that a process has.
pub(crate) const MEMORY_BYTES_MAX: u64 = 1 << 42;

/// Bytes that are copied at a time where a constant is one end.
const COPY_BYTES: usize = 1 << 20;

/// The address space as the engine sees it.
#[derive(Debug)]
pub(crate) struct EngineSpace {
    pub(crate) memory: Arc<Region>,
    pub(crate) constants: ConstantStore,
}

impl EngineSpace {
    /// A place in it, which may lie outside.
    pub(crate) fn place(&self, at: DeviceOffset) -> Place<'_> {
        self.constants.place(at).unwrap_or_else(|| Place::of_memory(&self.memory, at, at.0))
    }

    /// Raises an epoch.
    pub(crate) fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        match self.memory.word(word.0) {
            Some(word) => word.store(epoch.0, Release),
            None => tracing::error!(at = word.0, "an epoch word outside the device's memory, or not aligned"),
        }
    }
}

/// The constants of a device: each a memory file of its own, under the offset at which kernels find it.
#[derive(Debug)]
pub(crate) struct ConstantStore {
    bytes: u64,
    extents: BTreeMap<u64, Extent>,
}

impl ConstantStore {
    /// A store with so much room.
    pub(crate) fn new(bytes: u64) -> ConstantStore {
        ConstantStore { bytes, extents: BTreeMap::new() }
    }

    /// Takes memory for a constant, whole pages in which nothing else is.
    pub(crate) fn reserve(&mut self, at: DeviceOffset, bytes: u64) -> Result<&Extent, DeviceError> {
        let page = rustix::param::page_size() as u64;
        let outside = DeviceError::OutOfRange { at: at.0, bytes, memory_bytes: self.bytes };
        let Some(within) = at.0.checked_sub(CONSTANTS_BASE.0) else { return Err(outside) };
        let Some(end) = within.checked_add(bytes).filter(|end| *end <= self.bytes) else { return Err(outside) };
        let is_free = self.extents.range(..end).next_back().is_none_or(|(begin, extent)| begin + extent.bytes() <= within);
        if !is_free || bytes == 0 || !within.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(outside);
        }
        let extent = Extent::create(bytes).map_err(|source| DeviceError::Os { what: "take memory for a constant", source })?;
        Ok(self.extents.entry(within).or_insert(extent))
    }

    /// Gives its memory back; `None` if there is none.
    pub(crate) fn release(&mut self, at: DeviceOffset) -> Option<Extent> {
        self.extents.remove(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// What begins at this offset.
    pub(crate) fn get(&self, at: DeviceOffset) -> Option<&Extent> {
        self.extents.get(&at.0.checked_sub(CONSTANTS_BASE.0)?)
    }

    /// A place among the constants, which may be nobody's.
    pub(crate) fn place(&self, at: DeviceOffset) -> Option<Place<'_>> {
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
pub(crate) struct Place<'a> {
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
    pub(crate) fn of_memory(memory: &'a Region, at: DeviceOffset, within: u64) -> Place<'a> {
        Place { part: Part::Memory(memory), at, within }
    }

    pub(crate) fn write(self, bytes: &[u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.write(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.write(at, bytes).map_err(|source| DeviceError::Os { what: "write a constant", source })
            }
        }
    }

    pub(crate) fn read(self, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.read(self.within, bytes).map_err(self.outside()),
            Part::Constants(store) => {
                let (extent, at) = store.find(self.within, bytes.len() as u64).map_err(self.outside())?;
                extent.read(at, bytes).map_err(|source| DeviceError::Os { what: "read a constant", source })
            }
        }
    }

    /// Copies to another place, in this address space or another one.
    pub(crate) fn copy_to(self, to: Place<'_>, bytes: u64) -> Result<(), DeviceError> {
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

    pub(crate) fn fill(self, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self.part {
            Part::Memory(region) => region.fill(self.within, value, bytes).map_err(self.outside()),
            Part::Constants(_) => {
                self.check(bytes)?;
                self.write(&vec![value; bytes as usize])
            }
        }
    }

    /// Gives memory back to the system.
    pub(crate) fn give_back(self, bytes: u64) -> Result<(), DeviceError> {
        self.check(bytes)?;
        match self.part {
            Part::Memory(region) => {
                region.give_back(self.within, bytes).map_err(|source| DeviceError::Os { what: "give memory back", source })
            }
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

/// The address space as kernels see it.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpace {
    pub(crate) memory: Arc<Region>,
    constants: Arc<Window>,
}

impl KernelSpace {
    pub(crate) fn new(memory: Arc<Region>, constants: Arc<Window>) -> KernelSpace {
        KernelSpace { memory, constants }
    }

    /// The address of an offset; one past the end is allowed, as for any array.
    pub(crate) fn address(&self, at: u64) -> Option<u64> {
        match at.checked_sub(CONSTANTS_BASE.0) {
            Some(within) => self.constants.address(within),
            None => self.memory.address(at),
        }
    }

    /// The addresses of a range and whether kernels may only read it, or how large the part of the space is that it does not lie in.
    pub(crate) fn range(&self, at: DeviceOffset, bytes: u64) -> Result<(u64, u64, bool), u64> {
        let is_constant = at >= CONSTANTS_BASE;
        let region_bytes = if is_constant { self.constants.bytes() } else { self.memory.bytes() };
        let end = at.0.checked_add(bytes).filter(|end| is_constant || *end <= region_bytes).and_then(|end| self.address(end));
        let end = end.ok_or(region_bytes)?;
        Ok((end - bytes, end, is_constant))
    }

    /// All of it as two buffers, for checked code of which nobody said more.
    pub(crate) fn bounds(&self) -> Bounds {
        let range = |name: &str, begin: Option<u64>, bytes, read_only| {
            let begin = begin.unwrap_or(0);
            bounds::Range { name: name.to_owned(), begin, end: begin + bytes, read_only }
        };
        let memory = range("device memory", self.memory.address(0), self.memory.bytes(), false);
        let constants = range("constants", self.constants.address(0), self.constants.bytes(), true);
        Bounds::new([memory, constants].into_iter().filter(|range| range.begin < range.end).collect())
    }
}
