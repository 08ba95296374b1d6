//! Memory of the device, and memory that host and device share.

use super::arguments::{Out, Pointer};
use super::entry_points;
use crate::driver::Driver;
use crate::memory::Kind;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::ffi::{c_int, c_uint};

/// `CU_MEMHOSTALLOC_*`: portable, mapped, write-combined; what registration has is within.
const HOST_FLAGS: c_uint = 0xf;

/// `CU_MEMORYTYPE_*`.
const HOST_MEMORY: c_uint = 1;
const DEVICE_MEMORY: c_uint = 2;

/// `CU_POINTER_ATTRIBUTE_*`.
mod attribute {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_BYTES: u32 = 12;
    pub(super) const IS_MAPPED: u32 = 13;
}

entry_points! { MEMORY:
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let context = Driver::get()?.current()?;
        let (free_bytes, total_bytes) = context.memory().free_and_total(context.device.ordinal);
        free.set(free_bytes as usize)?;
        total.set(total_bytes as usize)
    }

    fn cuMemAlloc_v2(at: Out<u64>, bytes: usize) {
        at.is_wanted()?;
        let context = Driver::get()?.current()?;
        context.refuse_while_capturing()?;
        at.set(context.take_memory(bytes as u64, 1, Kind::Device)?)
    }

    fn cuMemFree_v2(at: u64) {
        let driver = Driver::get()?;
        let context = driver.current()?;
        if at == 0 {
            return Ok(());
        }
        context.refuse_while_capturing()?;
        let allocation = driver.memory.find(at).filter(|allocation| allocation.at == at).ok_or(Status::InvalidValue)?;
        // Nobody may still be using it, whichever context it belongs to.
        driver.context(allocation.context)?.synchronize()?;
        driver.memory.give_back(at, Kind::Device)
    }

    fn cuMemAllocAsync(at: Out<u64>, bytes: usize, stream: u64) {
        at.is_wanted()?;
        let stream = Driver::get()?.stream(Handle(stream))?;
        if stream.capture().is_some() {
            return Err(Status::NotSupported);
        }
        at.set(stream.context.take_memory(bytes as u64, 1, Kind::Device)?)
    }

    fn cuMemFreeAsync(at: u64, stream: u64) {
        let driver = Driver::get()?;
        let stream = driver.stream(Handle(stream))?;
        let allocation = driver.memory.find(at).filter(|allocation| allocation.at == at && allocation.kind == Kind::Device);
        allocation.ok_or(Status::InvalidValue)?;
        if stream.capture().is_some() {
            return Err(Status::NotSupported);
        }
        stream.push(Work::Free { at })
    }

    fn cuMemHostAlloc(at: Out<u64>, bytes: usize, flags: c_uint) {
        host_alloc(at, bytes, flags)
    }

    fn cuMemAllocHost_v2(at: Out<u64>, bytes: usize) {
        host_alloc(at, bytes, 0)
    }

    fn cuMemFreeHost(at: Pointer) {
        let driver = Driver::get()?;
        driver.current()?.synchronize()?;
        driver.memory.give_back(at.address(), Kind::Pinned)
    }

    fn cuMemHostRegister_v2(at: Pointer, bytes: usize, flags: c_uint) {
        let context = Driver::get()?.current()?;
        if flags & !HOST_FLAGS != 0 {
            return Err(Status::InvalidValue);
        }
        context.memory().register(at.address(), bytes as u64, (context.handle, context.device.ordinal))
    }

    fn cuMemHostUnregister(at: Pointer) {
        let driver = Driver::get()?;
        driver.current()?.synchronize()?;
        driver.memory.give_back(at.address(), Kind::Registered)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, host: Pointer, flags: c_uint) {
        let context = Driver::get()?.current()?;
        let is_shared = |kind| matches!(kind, Kind::Pinned | Kind::Registered);
        if flags != 0 || !context.memory().find(host.address()).is_some_and(|allocation| is_shared(allocation.kind)) {
            return Err(Status::InvalidValue);
        }
        device.set(host.address())
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, host: Pointer) {
        let context = Driver::get()?.current()?;
        context.memory().find(host.address()).filter(|allocation| allocation.kind == Kind::Pinned).ok_or(Status::InvalidValue)?;
        // Portable and mapped, as all of it is.
        flags.set(3)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, at: u64) {
        let allocation = Driver::get()?.current()?.memory().find(at).ok_or(Status::NotFound)?;
        base.set_if_wanted(allocation.at);
        bytes.set_if_wanted(allocation.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Pointer, wanted: c_uint, at: u64) {
        let allocation = Driver::get()?.memory.find(at).ok_or(Status::InvalidValue)?;
        let is_device = allocation.kind == Kind::Device;
        match wanted {
            attribute::CONTEXT => value.as_out().set(allocation.context.0),
            attribute::MEMORY_TYPE => value.as_out().set(if is_device { DEVICE_MEMORY } else { HOST_MEMORY }),
            attribute::DEVICE_POINTER => value.as_out().set(at),
            attribute::HOST_POINTER if is_device => Err(Status::InvalidValue),
            attribute::HOST_POINTER => value.as_out().set(at),
            attribute::IS_MANAGED => value.as_out().set(0 as c_uint),
            attribute::DEVICE_ORDINAL => value.as_out().set(allocation.device as c_int),
            attribute::RANGE_START => value.as_out().set(allocation.at),
            attribute::RANGE_BYTES => value.as_out().set(allocation.bytes as usize),
            attribute::IS_MAPPED => value.as_out().set(1 as c_uint),
            _ => Err(Status::NotSupported),
        }
    }
}

fn host_alloc(at: Out<u64>, bytes: usize, flags: c_uint) -> Result<(), Status> {
    at.is_wanted()?;
    let context = Driver::get()?.current()?;
    if flags & !HOST_FLAGS != 0 {
        return Err(Status::InvalidValue);
    }
    at.set(context.take_memory(bytes as u64, 1, Kind::Pinned)?)
}
