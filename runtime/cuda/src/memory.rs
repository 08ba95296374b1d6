//! Memory of a device, and memory of the host that it sees.

use crate::context::Context;
use crate::error::CudaError;
use atoll_cuda_api::constants::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// What the driver calls a pointer to device memory.
pub use atoll_cuda_api::types::CUdeviceptr as DevicePtr;

/// Known to all contexts, and mapped for the device. Memory that is registered has flags of the
/// same numbers.
const HOST_ALLOC_MAPPED: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;

/// An access that does not lie in its memory: the caller's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at} lie outside {memory_bytes} bytes of memory")]
pub struct OutOfBounds {
    /// Where it begins.
    pub at: u64,
    /// Its size.
    pub bytes: u64,
    /// The size of the memory.
    pub memory_bytes: u64,
}

/// Why a transfer did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// It does not lie in the memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// Memory on a device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DevicePtr,
    bytes: u64,
}

impl DeviceMemory {
    /// At least one byte, of any content.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<DeviceMemory, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address to the address given.
        context.call("cuMemAlloc", |f| unsafe { (f.memory_alloc)(&mut address, bytes.max(1) as usize) })?;
        Ok(DeviceMemory { context: context.clone(), address, bytes })
    }

    /// The address as kernels see it.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of bytes that lie in it; one past the end is allowed where there are none, as
    /// for any array.
    pub fn range(&self, at: u64, bytes: u64) -> Result<DevicePtr, OutOfBounds> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + at),
            _ => Err(OutOfBounds { at, bytes, memory_bytes: self.bytes }),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
        self.context.release(|f| unsafe { (f.memory_free)(self.address) });
    }
}

/// Words in pinned host memory that the device can read and write.
#[derive(Debug)]
pub struct HostWords {
    context: Arc<Context>,
    memory: *mut AtomicU32,
    address: DevicePtr,
    count: usize,
}

// SAFETY: the memory is touched by atomics only.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

impl HostWords {
    /// At least one word, all zero.
    pub fn new(context: &Arc<Context>, count: usize) -> Result<HostWords, CudaError> {
        let count = count.max(1);
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: writes one address to the address given.
        context.call("cuMemHostAlloc", |f| unsafe { (f.host_alloc)(&mut memory, count * 4, HOST_ALLOC_MAPPED) })?;
        // SAFETY: the driver gave us that many bytes, page-aligned; nobody else has them yet.
        unsafe { ptr::write_bytes(memory.cast::<u8>(), 0, count * 4) };
        let mut words = HostWords { context: context.clone(), memory: memory.cast(), address: 0, count };
        context
            // SAFETY: the memory was allocated as mapped; writes one address to the address given.
            .call("cuMemHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut words.address, memory, 0) })?;
        Ok(words)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The address of the first as kernels see it; the others follow.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// A word as the host sees it.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is within memory that lives as long as `self` and is only touched by atomics
        // here and by strong accesses of kernels.
        unsafe { &*self.memory.add(index) }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
        self.context.release(|f| unsafe { (f.host_free)(self.memory.cast()) });
    }
}

/// Memory of this process that was there before, pinned and made known to the device: for
/// transfers, and for words that kernels look at.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    memory: *mut c_void,
    address: DevicePtr,
    bytes: u64,
}

// SAFETY: nothing here touches the memory; transfers copy to and from it as another process might.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Makes memory known.
    ///
    /// # Safety
    /// The bytes from `memory` on are mapped for reading and writing until this is dropped, and no
    /// references into them are ever made but to atomics.
    pub unsafe fn register(context: &Arc<Context>, memory: *mut c_void, bytes: u64) -> Result<HostMemory, CudaError> {
        context
            // SAFETY: the caller says that the range is mapped.
            .call("cuMemHostRegister", |f| unsafe { (f.host_register)(memory, bytes as usize, HOST_ALLOC_MAPPED) })?;
        let mut host = HostMemory { context: context.clone(), memory, address: 0, bytes };
        context
            // SAFETY: the memory was registered as mapped; writes one address to the address given.
            .call("cuMemHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut host.address, memory, 0) })?;
        Ok(host)
    }

    /// The address of its first byte as kernels see it.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Where bytes lie that are inside.
    pub(crate) fn range(&self, at: u64, bytes: u64) -> Result<*mut c_void, OutOfBounds> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.memory.wrapping_byte_add(at as usize)),
            _ => Err(OutOfBounds { at, bytes, memory_bytes: self.bytes }),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it was registered, and what was begun with it was waited for.
        self.context.release(|f| unsafe { (f.host_unregister)(self.memory) });
    }
}
