//! Device memory, and memory shared by host and device.

use super::arguments::{Out, Pointer};
use super::entry_points;
use crate::driver::Driver;
use crate::memory::{Allocation, Kind};
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;

/// Accepted flags of pinned and registered memory. All of it is portable and mapped, and has the
/// normal caching.
const HOST_FLAGS: c_uint = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

entry_points! { MEMORY:
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = Driver::get()?.current()?;
        let (free_bytes, total_bytes) = context.memory().free_and_total(context.device.ordinal);
        free.set(free_bytes as usize)?;
        total.set(total_bytes as usize)
    }

    fn cuMemAlloc_v2(at: Out<CUdeviceptr>, bytes: usize) {
        at.is_wanted()?;
        let context = Driver::get()?.current()?;
        context.refuse_while_capturing()?;
        at.set(context.take_memory(bytes as u64, 1, Kind::Device)?)
    }

    fn cuMemFree_v2(at: CUdeviceptr) {
        let driver = Driver::get()?;
        let context = driver.current()?;
        if at == 0 {
            return Ok(());
        }
        context.refuse_while_capturing()?;
        let allocation = driver.memory.find(at).filter(|allocation| allocation.at == at).ok_or(Status::InvalidValue)?;
        // Waits until the context that owns the allocation is idle.
        driver.context(allocation.context)?.synchronize()?;
        driver.memory.give_back(at, Kind::Device)
    }

    fn cuMemAllocAsync(at: Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        at.is_wanted()?;
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        if stream.capture().is_some() {
            return Err(Status::NotSupported);
        }
        at.set(stream.context.take_memory(bytes as u64, 1, Kind::Device)?)
    }

    fn cuMemFreeAsync(at: CUdeviceptr, stream: CUstream) {
        let driver = Driver::get()?;
        let stream = driver.stream(Handle::of(stream))?;
        let is_meant = |found: &Allocation| found.at == at && found.kind == Kind::Device;
        let allocation = driver.memory.find(at).filter(is_meant);
        allocation.ok_or(Status::InvalidValue)?;
        if stream.capture().is_some() {
            return Err(Status::NotSupported);
        }
        stream.push(Work::Free { at })
    }

    fn cuMemHostAlloc(at: Out<Pointer>, bytes: usize, flags: c_uint) {
        host_alloc(at, bytes, flags)
    }

    fn cuMemAllocHost_v2(at: Out<Pointer>, bytes: usize) {
        host_alloc(at, bytes, 0)
    }

    fn cuMemFreeHost(at: Pointer) {
        let driver = Driver::get()?;
        driver.current()?.synchronize()?;
        driver.memory.give_back(at.address(), Kind::Pinned)
    }

    fn cuMemHostRegister(at: Pointer, bytes: usize, flags: c_uint) {
        host_register(at, bytes, flags)
    }

    fn cuMemHostRegister_v2(at: Pointer, bytes: usize, flags: c_uint) {
        host_register(at, bytes, flags)
    }

    fn cuMemHostUnregister(at: Pointer) {
        let driver = Driver::get()?;
        driver.current()?.synchronize()?;
        driver.memory.give_back(at.address(), Kind::Registered)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, host: Pointer, flags: c_uint) {
        let context = Driver::get()?.current()?;
        let is_shared = |kind| matches!(kind, Kind::Pinned | Kind::Registered);
        if flags != 0 || !context.memory().find(host.address()).is_some_and(|allocation| is_shared(allocation.kind)) {
            return Err(Status::InvalidValue);
        }
        device.set(host.address())
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, host: Pointer) {
        let context = Driver::get()?.current()?;
        let found = context.memory().find(host.address());
        found.filter(|allocation| allocation.kind == Kind::Pinned).ok_or(Status::InvalidValue)?;
        flags.set(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, bytes: Out<usize>, at: CUdeviceptr) {
        let allocation = Driver::get()?.current()?.memory().find(at).ok_or(Status::NotFound)?;
        base.set_if_wanted(allocation.at);
        bytes.set_if_wanted(allocation.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Pointer, wanted: CUpointer_attribute, at: CUdeviceptr) {
        let allocation = Driver::get()?.memory.find(at).ok_or(Status::InvalidValue)?;
        let is_device = matches!(allocation.kind, Kind::Device | Kind::Imported);
        match wanted {
            CU_POINTER_ATTRIBUTE_CONTEXT => value.as_out().set(allocation.context.0),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                value.as_out().set(if is_device { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST })
            }
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER => value.as_out().set(at),
            CU_POINTER_ATTRIBUTE_HOST_POINTER if is_device => Err(Status::InvalidValue),
            CU_POINTER_ATTRIBUTE_HOST_POINTER => value.as_out().set(at),
            CU_POINTER_ATTRIBUTE_IS_MANAGED => value.as_out().set(0 as c_uint),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => value.as_out().set(allocation.device as c_int),
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => value.as_out().set(allocation.at),
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => value.as_out().set(allocation.bytes as usize),
            CU_POINTER_ATTRIBUTE_MAPPED => value.as_out().set(1 as c_uint),
            _ => Err(Status::NotSupported),
        }
    }
}

fn host_alloc(at: Out<Pointer>, bytes: usize, flags: c_uint) -> Result<(), Status> {
    at.is_wanted()?;
    let context = Driver::get()?.current()?;
    if flags & !HOST_FLAGS != 0 {
        return Err(Status::InvalidValue);
    }
    at.set(Pointer::to(context.take_memory(bytes as u64, 1, Kind::Pinned)?))
}

fn host_register(at: Pointer, bytes: usize, flags: c_uint) -> Result<(), Status> {
    let context = Driver::get()?.current()?;
    if flags & !HOST_FLAGS != 0 {
        return Err(Status::InvalidValue);
    }
    context.memory().register(at.address(), bytes as u64, (context.handle, context.device.ordinal))
}
