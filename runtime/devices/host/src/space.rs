//! The address space of a host device as its kernels see it: memory that they write, and constants
//! that they only read.

use crate::bounds::{self, Bounds};
use atoll_core::DeviceOffset;
use atoll_device::extent::Window;
use atoll_device::shm::Region;
use atoll_device::space::CONSTANTS_BASE;
use std::sync::Arc;

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

    /// The address of an offset; one past the end is allowed.
    pub(crate) fn address(&self, at: u64) -> Option<u64> {
        match at.checked_sub(CONSTANTS_BASE.0) {
            Some(within) => self.constants.address(within),
            None => self.memory.address(at),
        }
    }

    /// The offset of an address in memory or among the constants, or one past the end of either;
    /// `None` elsewhere.
    pub(crate) fn offset(&self, address: u64) -> Option<u64> {
        let within = |base: Option<u64>, bytes: u64| address.checked_sub(base?).filter(|within| *within <= bytes);
        let in_constants = || Some(within(self.constants.address(0), self.constants.bytes())? + CONSTANTS_BASE.0);
        within(self.memory.address(0), self.memory.bytes()).or_else(in_constants)
    }

    /// The addresses of a range, and whether kernels may only read it. A range outside the space is
    /// an error, whose value is the size of the part that it should lie in: memory or constants.
    pub(crate) fn range(&self, at: DeviceOffset, bytes: u64) -> Result<(u64, u64, bool), u64> {
        let is_constant = at >= CONSTANTS_BASE;
        let region_bytes = if is_constant { self.constants.bytes() } else { self.memory.bytes() };
        let end =
            at.0.checked_add(bytes).filter(|end| is_constant || *end <= region_bytes).and_then(|end| self.address(end));
        let end = end.ok_or(region_bytes)?;
        Ok((end - bytes, end, is_constant))
    }

    /// The whole address space as two buffers, for checked code without declared buffers.
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
