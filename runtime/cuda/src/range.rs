//! Ranges of device memory, and transfers that do not wait for completion.

use crate::error::CudaError;
use crate::memory::{DeviceMemory, DevicePtr, OutOfBounds};
use crate::module::Variable;
use crate::stream::Stream;
use std::marker::PhantomData;

/// A range of device memory, which stays allocated while the range exists.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange<'a> {
    address: DevicePtr,
    bytes: u64,
    memory: PhantomData<&'a DeviceMemory>,
}

impl<'a> DeviceRange<'a> {
    /// A range of `bytes` bytes inside memory, at an offset in bytes.
    pub fn of_memory(memory: &'a DeviceMemory, at: u64, bytes: u64) -> Result<DeviceRange<'a>, OutOfBounds> {
        Ok(DeviceRange { address: memory.range(at, bytes)?, bytes, memory: PhantomData })
    }

    /// A range of `bytes` bytes inside a variable, at an offset in bytes.
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
    /// Copies to a range, up to the smaller size. Returns once the bytes have been read.
    pub fn put(&self, to: DeviceRange<'_>, bytes: &[u8]) -> Result<(), CudaError> {
        let count = bytes.len().min(to.bytes as usize);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside live device memory. The bytes are pageable memory, which the
        // driver has read when the call returns, as its reference says.
        self.context().call("cuMemcpyHtoDAsync", |f| unsafe {
            (f.copy_to_device)(to.address, bytes.as_ptr().cast(), count, self.handle)
        })
    }

    /// Copies from a range, up to the smaller size, and waits for the copy.
    pub fn get(&self, from: DeviceRange<'_>, bytes: &mut [u8]) -> Result<(), CudaError> {
        let count = bytes.len().min(from.bytes as usize);
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside live device memory; the bytes are borrowed until the stream
        // has been waited for.
        let begun = self.context().call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(bytes.as_mut_ptr().cast(), from.address, count, self.handle)
        });
        let ended = self.synchronize();
        begun.and(ended)
    }

    /// Copies between ranges, up to the smaller size. Does not wait: freeing the memory later waits
    /// for the copy.
    pub fn move_range(&self, to: DeviceRange<'_>, from: DeviceRange<'_>) -> Result<(), CudaError> {
        let count = to.bytes.min(from.bytes) as usize;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: both ranges are inside live device memory.
        self.context()
            .call("cuMemcpyDtoDAsync", |f| unsafe { (f.copy_on_device)(to.address, from.address, count, self.handle) })
    }

    /// Fills a range with whole elements. Does not wait.
    pub fn fill_range(&self, to: DeviceRange<'_>, element: Element) -> Result<(), CudaError> {
        let (address, bytes) = (to.address, to.bytes as usize);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: this many elements fit into the range, which is inside live device memory.
        self.context().call("cuMemset", |f| unsafe {
            match element {
                Element::Byte(value) => (f.fill_bytes)(address, value, bytes, self.handle),
                Element::Half(value) => (f.fill_halves)(address, value, bytes / 2, self.handle),
                Element::Word(value) => (f.fill_words)(address, value, bytes / 4, self.handle),
            }
        })
    }
}
