//! Device memory, and host memory that the device can access.

use crate::context::Context;
use crate::error::CudaError;
use atoll_cuda_api::constants::{
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE,
};
use atoll_cuda_api::types::CUipcMemHandle;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The driver's type of an address in device memory.
pub use atoll_cuda_api::types::CUdeviceptr as DevicePtr;

/// Portable to all contexts, and mapped for the device. The flags for registered memory have the
/// same values.
const HOST_ALLOC_MAPPED: c_uint = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;

/// An access outside its memory: a mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at} lie outside {memory_bytes} bytes of memory")]
pub struct OutOfBounds {
    /// Offset of the access.
    pub at: u64,
    /// Its size.
    pub bytes: u64,
    /// The size of the memory.
    pub memory_bytes: u64,
}

/// Why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// A range is outside its memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

/// Memory on a device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DevicePtr,
    bytes: u64,
    /// Whether another process allocated it.
    is_imported: bool,
}

impl DeviceMemory {
    /// Allocates at least one byte, uninitialized.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<DeviceMemory, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address to the given address.
        context.call("cuMemAlloc", |f| unsafe { (f.memory_alloc)(&mut address, bytes.max(1) as usize) })?;
        Ok(DeviceMemory { context: context.clone(), address, bytes, is_imported: false })
    }

    /// Opens memory that another process has exported under a handle of CUDA IPC. Its size is that
    /// of the allocation, from the exported address on.
    ///
    /// # Errors
    /// If the driver refuses the handle: the memory was freed, its process has ended, or it belongs
    /// to a device or a user whose memory this process cannot map.
    pub fn import(context: &Arc<Context>, handle: [u8; 64]) -> Result<DeviceMemory, CudaError> {
        let (mut address, handle) = (0, CUipcMemHandle { reserved: handle });
        let flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        // SAFETY: writes one address to the given address; the driver checks the handle.
        context.call("cuIpcOpenMemHandle", |f| unsafe { (f.ipc_open)(&mut address, handle, flags) })?;
        // Closed when dropped, if the next call fails.
        let mut memory = DeviceMemory { context: context.clone(), address, bytes: 0, is_imported: true };
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: writes an address and a size to the given addresses.
        context.call("cuMemGetAddressRange", |f| unsafe { (f.memory_range)(&mut base, &mut bytes, address) })?;
        memory.bytes = base.saturating_add(bytes as u64).saturating_sub(address);
        Ok(memory)
    }

    /// The address for kernels.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a range inside; an empty range may begin at the end.
    pub fn range(&self, at: u64, bytes: u64) -> Result<DevicePtr, OutOfBounds> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + at),
            _ => Err(OutOfBounds { at, bytes, memory_bytes: self.bytes }),
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.release(|f| match self.is_imported {
            // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
            false => unsafe { (f.memory_free)(self.address) },
            // SAFETY: it was opened once for `self`, and all transfers with it have completed.
            true => unsafe { (f.ipc_close)(self.address) },
        });
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

// SAFETY: the memory is accessed by atomics only.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

impl HostWords {
    /// Allocates at least one zeroed word.
    pub fn new(context: &Arc<Context>, count: usize) -> Result<HostWords, CudaError> {
        let count = count.max(1);
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: writes one address to the given address.
        context.call("cuMemHostAlloc", |f| unsafe { (f.host_alloc)(&mut memory, count * 4, HOST_ALLOC_MAPPED) })?;
        // SAFETY: the driver allocated that many bytes, page-aligned; nothing else refers to them
        // yet.
        unsafe { ptr::write_bytes(memory.cast::<u8>(), 0, count * 4) };
        let mut words = HostWords { context: context.clone(), memory: memory.cast(), address: 0, count };
        context
            // SAFETY: the memory was allocated as mapped; writes one address to the given address.
            .call("cuMemHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut words.address, memory, 0) })?;
        Ok(words)
    }

    /// Number of words.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The address of the first word for kernels; the others follow.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// A word, for access by the host.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: the index is inside memory that lives as long as `self` and is only accessed by
        // atomics here and by strong accesses of kernels.
        unsafe { &*self.memory.add(index) }
    }
}

impl Drop for HostWords {
    fn drop(&mut self) {
        // SAFETY: the memory is ours and not used again; the call waits for kernels that use it.
        self.context.release(|f| unsafe { (f.host_free)(self.memory.cast()) });
    }
}

/// Existing memory of this process that is registered with the device: for transfers, and for words
/// that kernels read.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    memory: *mut c_void,
    address: DevicePtr,
    bytes: u64,
}

// SAFETY: this type does not access the memory; transfers copy from and to it, as another process
// might.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Registers memory.
    ///
    /// # Safety
    /// The `bytes` bytes at `memory` stay mapped for reading and writing until this is dropped, and
    /// references into them are only made to atomics.
    pub unsafe fn register(context: &Arc<Context>, memory: *mut c_void, bytes: u64) -> Result<HostMemory, CudaError> {
        context
            // SAFETY: the caller guarantees that the range is mapped.
            .call("cuMemHostRegister", |f| unsafe { (f.host_register)(memory, bytes as usize, HOST_ALLOC_MAPPED) })?;
        let mut host = HostMemory { context: context.clone(), memory, address: 0, bytes };
        context
            // SAFETY: the memory was registered as mapped; writes one address to the given address.
            .call("cuMemHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut host.address, memory, 0) })?;
        Ok(host)
    }

    /// The address of its first byte for kernels.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// The host address of a range inside.
    pub(crate) fn range(&self, at: u64, bytes: u64) -> Result<*mut c_void, OutOfBounds> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.memory.wrapping_byte_add(at as usize)),
            _ => Err(OutOfBounds { at, bytes, memory_bytes: self.bytes }),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it was registered, and all transfers with it have completed.
        self.context.release(|f| unsafe { (f.host_unregister)(self.memory) });
    }
}
