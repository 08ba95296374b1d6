//! The address space of a host device: memory that kernels change, and constants that they only read.
//!
//! Both are found by one number, [`DeviceOffset`]: memory begins at 0, constants at [`CONSTANTS_BASE`]. The engine's side may write to both. The device's side maps the constants for
//! reading only, so that no kernel, however wild its stores, can spoil what others compute with; and several devices may share them.

use super::bounds::{self, Bounds};
use crate::DeviceError;
use crate::shm::{OutOfRange, Region, RegionView};
use atoll_core::DeviceOffset;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Where constants begin: above all memory, and a multiple of the alignment of the largest region, so that what is aligned by its offset is so by its address.
pub const CONSTANTS_BASE: DeviceOffset = DeviceOffset(1 << 46);

/// Most memory of a device.
pub(crate) const MEMORY_BYTES_MAX: u64 = 1 << 45;

/// The address space as the engine sees it.
#[derive(Clone, Debug)]
pub(crate) struct EngineSpace {
    pub(crate) memory: Arc<Region>,
    pub(crate) constants: Arc<Region>,
}

impl EngineSpace {
    pub(crate) fn write(&self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        let (region, within) = self.find(at);
        region.write(within, bytes).map_err(|error| outside(at, error))
    }

    pub(crate) fn read(&self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (region, within) = self.find(at);
        region.read(within, bytes).map_err(|error| outside(at, error))
    }

    pub(crate) fn copy(&self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        self.copy_from(to, self, from, bytes)
    }

    /// Copies from another device's memory, or from this one's.
    pub(crate) fn copy_from(&self, to: DeviceOffset, other: &EngineSpace, from: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let ((source, from_within), (target, to_within)) = (other.find(from), self.find(to));
        source.check(from_within, bytes).map_err(|error| outside(from, error))?;
        target.copy_from(to_within, source, from_within, bytes).map_err(|error| outside(to, error))
    }

    pub(crate) fn fill(&self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        let (region, within) = self.find(at);
        region.fill(within, value, bytes).map_err(|error| outside(at, error))
    }

    pub(crate) fn give_back(&self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        let (region, within) = self.find(at);
        region.check(within, bytes).map_err(|error| outside(at, error))?;
        region.give_back(within, bytes).map_err(|source| DeviceError::Os { what: "give memory back", source })
    }

    /// A word that kernels may look at.
    pub(crate) fn word(&self, at: DeviceOffset) -> Option<&AtomicU32> {
        self.memory.word(at.0)
    }

    fn find(&self, at: DeviceOffset) -> (&Region, u64) {
        match at.0.checked_sub(CONSTANTS_BASE.0) {
            Some(within) => (&self.constants, within),
            None => (&self.memory, at.0),
        }
    }
}

fn outside(at: DeviceOffset, error: OutOfRange) -> DeviceError {
    DeviceError::OutOfRange { at: at.0, bytes: error.bytes, memory_bytes: error.region_bytes }
}

/// The address space as kernels see it.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpace {
    pub(crate) memory: Arc<Region>,
    constants: Arc<RegionView>,
}

impl KernelSpace {
    pub(crate) fn new(memory: Arc<Region>, constants: RegionView) -> KernelSpace {
        KernelSpace { memory, constants: Arc::new(constants) }
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
