//! Ranges of device memory, and transfers that do not wait.

use crate::error::CudaError;
use crate::memory::{DeviceMemory, DevicePtr, OutOfBounds};
use crate::module::Variable;
use crate::stream::Stream;
use std::marker::PhantomData;

/// A range inside device memory that lives as long as the range.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange<'a> {
    address: DevicePtr,
    bytes: u64,
    memory: PhantomData<&'a DeviceMemory>,
}

impl<'a> DeviceRange<'a> {
    /// A range inside memory, by its offset.
    pub fn of_memory(memory: &'a DeviceMemory, at: u64, bytes: u64) -> Result<DeviceRange<'a>, OutOfBounds> {
        Ok(DeviceRange { address: memory.range(at, bytes)?, bytes, memory: PhantomData })
    }

    /// A range inside a variable, by its offset.
    pub fn of_variable(variable: &'a Variable, at: u64, bytes: u64) -> Result<DeviceRange<'a>, OutOfBounds> {
        match at.checked_add(bytes) {
            Some(end) if end <= variable.bytes() => {
                Ok(DeviceRange { address: variable.address() + at, bytes, memory: PhantomData })
            }
            _ => Err(OutOfBounds { at, bytes, memory_bytes: variable.bytes() }),
        }
    }
}

/// An element of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// One byte.
    Byte(u8),
    /// Two bytes.
    Half(u16),
    /// Four bytes.
    Word(u32),
}

impl Stream {
    /// Copies as many bytes as fit into a range. Returns as soon as the bytes were read.
    pub fn put(&self, to: DeviceRange<'_>, bytes: &[u8]) -> Result<(), CudaError> {
        let count = bytes.len().min(to.bytes as usize);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside device memory that lives; the bytes are ordinary memory, which
        // the driver has read when the call returns, as its reference says of pageable memory.
        self.context().call("cuMemcpyHtoDAsync", |f| unsafe {
            (f.copy_to_device)(to.address, bytes.as_ptr().cast(), count, self.handle)
        })
    }

    /// Copies as many bytes of a range as fit, and waits for the copy.
    pub fn get(&self, from: DeviceRange<'_>, bytes: &mut [u8]) -> Result<(), CudaError> {
        let count = bytes.len().min(from.bytes as usize);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside device memory that lives; the bytes are borrowed until the
        // stream has been waited for.
        let begun = self.context().call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(bytes.as_mut_ptr().cast(), from.address, count, self.handle)
        });
        let ended = self.synchronize();
        begun.and(ended)
    }

    /// Copies between ranges, up to the smaller size. Does not wait: freeing device memory waits
    /// for work that uses it.
    pub fn move_range(&self, to: DeviceRange<'_>, from: DeviceRange<'_>) -> Result<(), CudaError> {
        let count = to.bytes.min(from.bytes) as usize;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside device memory that lives.
        self.context()
            .call("cuMemcpyDtoDAsync", |f| unsafe { (f.copy_on_device)(to.address, from.address, count, self.handle) })
    }

    /// Fills a range with whole elements. Does not wait.
    pub fn fill_range(&self, to: DeviceRange<'_>, element: Element) -> Result<(), CudaError> {
        let (address, bytes) = (to.address, to.bytes as usize);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as many elements as are inside the range, which is inside device memory that lives.
        self.context().call("cuMemset", |f| unsafe {
            match element {
                Element::Byte(value) => (f.fill_bytes)(address, value, bytes, self.handle),
                Element::Half(value) => (f.fill_halves)(address, value, bytes / 2, self.handle),
                Element::Word(value) => (f.fill_words)(address, value, bytes / 4, self.handle),
            }
        })
    }
}
