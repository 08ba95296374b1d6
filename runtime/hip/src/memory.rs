//! Device memory, also of other processes, and host memory that the device can access.

use crate::context::Context;
use crate::error::{HipError, status};
use atoll_hip_api::constants::{
    HOST_MALLOC_COHERENT, HOST_MALLOC_MAPPED, HOST_MALLOC_PORTABLE, HOST_REGISTER_MAPPED, HOST_REGISTER_PORTABLE,
    IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
};
use atoll_hip_api::types::{c_void, hipIpcMemHandle_t};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// The library's type of an address in device memory.
pub use atoll_hip_api::types::hipDeviceptr_t as DevicePtr;

/// Host memory in which running kernels and the host see each other's stores. Without the last
/// flag, kernels may keep it in caches until they end.
const WORDS_FLAGS: u32 = HOST_MALLOC_PORTABLE | HOST_MALLOC_MAPPED | HOST_MALLOC_COHERENT;

/// The address of a range of memory with `of` bytes; an empty range may begin at the end.
fn range(call: &'static str, base: DevicePtr, of: u64, at: u64, bytes: u64) -> Result<DevicePtr, HipError> {
    match at.checked_add(bytes) {
        Some(end) if end <= of => Ok(base + at),
        _ => Err(HipError::of(call, status::INVALID_VALUE)),
    }
}

/// Memory on a device: of this process, or opened by a handle of another process.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: DevicePtr,
    bytes: u64,
    is_own: bool,
}

impl DeviceMemory {
    /// Allocates at least one byte, uninitialized.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<DeviceMemory, HipError> {
        let mut address = 0;
        // SAFETY: writes one address to the given address.
        context.call("hipMalloc", |f| unsafe { (f.memory_alloc)(&mut address, bytes.max(1) as usize) })?;
        Ok(DeviceMemory { context: context.clone(), address, bytes, is_own: true })
    }

    /// Opens memory of `bytes` bytes, which another process allocated on the same device. A process
    /// cannot open its own memory.
    pub fn open(context: &Arc<Context>, handle: MemoryHandle, bytes: u64) -> Result<DeviceMemory, HipError> {
        let mut address = 0;
        let handle = hipIpcMemHandle_t { reserved: handle.bytes };
        context.call("hipIpcOpenMemHandle", |f| {
            // SAFETY: writes one address to the given address; the library checks the handle.
            unsafe { (f.ipc_open)(&mut address, handle, IPC_MEM_LAZY_ENABLE_PEER_ACCESS) }
        })?;
        Ok(DeviceMemory { context: context.clone(), address, bytes, is_own: false })
    }

    /// The address for kernels.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a range inside.
    pub(crate) fn range(&self, call: &'static str, at: u64, bytes: u64) -> Result<DevicePtr, HipError> {
        range(call, self.address, self.bytes, at, bytes)
    }

    /// A handle with which other processes can open this memory while it lives.
    pub fn share(&self) -> Result<MemoryHandle, HipError> {
        let mut handle = hipIpcMemHandle_t { reserved: [0; 64] };
        // SAFETY: writes one handle to the given address; the memory is ours.
        self.context.call("hipIpcGetMemHandle", |f| unsafe { (f.ipc_get)(&mut handle, self.address) })?;
        Ok(MemoryHandle { bytes: handle.reserved })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.context.release(|f| {
            // SAFETY: the memory was allocated or opened here, and is not used again; both calls
            // wait for kernels that use it.
            unsafe { if self.is_own { (f.memory_free)(self.address) } else { (f.ipc_close)(self.address) } }
        });
    }
}

/// A handle by which another process opens device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    /// Private to the library; any bytes may be sent.
    pub bytes: [u8; 64],
}

/// Words in pinned host memory that the device can read and write while kernels run.
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
    pub fn new(context: &Arc<Context>, count: usize) -> Result<HostWords, HipError> {
        let count = count.max(1);
        let mut memory: *mut c_void = ptr::null_mut();
        // SAFETY: writes one address to the given address.
        context.call("hipHostMalloc", |f| unsafe { (f.host_alloc)(&mut memory, count * 4, WORDS_FLAGS) })?;
        // SAFETY: the library allocated that many bytes, page-aligned; nothing else refers to them
        // yet.
        unsafe { ptr::write_bytes(memory.cast::<u8>(), 0, count * 4) };
        let mut words = HostWords { context: context.clone(), memory: memory.cast(), address: 0, count };
        context
            // SAFETY: the memory was allocated as mapped; writes one address to the given address.
            .call("hipHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut words.address, memory, 0) })?;
        Ok(words)
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

/// Memory of this process that is registered with the device: for transfers, and for words that
/// kernels read.
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
    pub unsafe fn register(context: &Arc<Context>, memory: *mut c_void, bytes: u64) -> Result<HostMemory, HipError> {
        let flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_MAPPED;
        context
            // SAFETY: the caller guarantees that the range is mapped.
            .call("hipHostRegister", |f| unsafe { (f.host_register)(memory, bytes as usize, flags) })?;
        let mut host = HostMemory { context: context.clone(), memory, address: 0, bytes };
        context
            // SAFETY: the memory was registered as mapped; writes one address to the given address.
            .call("hipHostGetDevicePointer", |f| unsafe { (f.host_device_pointer)(&mut host.address, memory, 0) })?;
        Ok(host)
    }

    /// The address of its first byte for kernels.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// The host address of a range inside.
    pub(crate) fn range(&self, call: &'static str, at: u64, bytes: u64) -> Result<*mut c_void, HipError> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.memory.wrapping_byte_add(at as usize)),
            _ => Err(HipError::of(call, status::INVALID_VALUE)),
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it was registered, and all transfers with it have completed.
        self.context.release(|f| unsafe { (f.host_unregister)(self.memory) });
    }
}
