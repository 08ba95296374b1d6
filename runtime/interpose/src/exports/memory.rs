//! Device memory, and pinned memory of the program.

use super::entry_points;
use crate::arguments::{In, Out, Place};
use crate::handles::{Kind, handle};
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, limits};

/// Accepted flags of registered memory.
const REGISTER_FLAGS: c_uint = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

entry_points! { MEMORY:
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (shim, _) = Shim::current()?;
        let (free_bytes, total_bytes) = shim.client.memory_bytes();
        free.set(free_bytes as usize)?;
        total.set(total_bytes as usize)
    }

    fn cuMemAlloc_v2(at: Out<CUdeviceptr>, bytes: usize) {
        at.is_wanted()?;
        let (mut shim, context) = Shim::current()?;
        shim.forbid_in_capture()?;
        at.set(shim.client.allocate(context, bytes as u64)?)
    }

    fn cuMemAllocPitch_v2(
        at: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element_bytes: c_uint
    ) {
        at.is_wanted()?;
        pitch.is_wanted()?;
        if ![4, 8, 16].contains(&element_bytes) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (mut shim, context) = Shim::current()?;
        shim.forbid_in_capture()?;
        let row = width.checked_next_multiple_of(limits::ALIGN_BYTES as usize).ok_or(Code::OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        at.set(shim.client.allocate(context, bytes as u64)?)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(at: CUdeviceptr) {
        let (mut shim, _) = Shim::current()?;
        if at == 0 {
            return Ok(());
        }
        shim.forbid_in_capture()?;
        shim.free(at)
    }

    fn cuMemHostAlloc(at: Out<Place>, bytes: usize, flags: c_uint) {
        host_alloc(at, bytes, flags)
    }

    fn cuMemAllocHost_v2(at: Out<Place>, bytes: usize) {
        host_alloc(at, bytes, 0)
    }

    fn cuMemFreeHost(at: Place) {
        let (mut shim, _) = Shim::current()?;
        shim.forbid_in_capture()?;
        // A recorded copy to the host may still write into the memory.
        let waited = shim.client.complete_copies();
        shim.host.free(at.address())?;
        waited
    }

    fn cuMemHostRegister(at: Place, bytes: usize, flags: c_uint) {
        host_register(at, bytes, flags)
    }

    fn cuMemHostRegister_v2(at: Place, bytes: usize, flags: c_uint) {
        host_register(at, bytes, flags)
    }

    fn cuMemHostUnregister(at: Place) {
        let (mut shim, _) = Shim::current()?;
        let waited = shim.client.complete_copies();
        shim.host.unregister(at.address())?;
        waited
    }

    // The address is the program's. A launch replaces it by that of a copy.
    fn cuMemHostGetDevicePointer_v2(at: Out<CUdeviceptr>, host: Place, flags: c_uint) {
        let (shim, _) = Shim::current()?;
        if flags != 0 || shim.host.block(host.address()).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        at.set(host.address())
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, at: Place) {
        let (shim, _) = Shim::current()?;
        flags.set(shim.host.flags(at.address()).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, bytes: Out<usize>, at: CUdeviceptr) {
        let (shim, _) = Shim::current()?;
        let found = shim.client.find(at).ok_or(Code::NOT_FOUND)?;
        base.set_if_wanted(found.span.at);
        bytes.set_if_wanted(found.span.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Place, wanted: CUpointer_attribute, at: CUdeviceptr) {
        attribute(&*Shim::get()?, value, wanted, at)
    }

    fn cuPointerGetAttributes(
        count: c_uint, wanted: In<CUpointer_attribute>, values: In<Place>, at: CUdeviceptr
    ) {
        let shim = Shim::get()?;
        for index in 0..count as usize {
            let (wanted, value) = (wanted.get(index)?, values.get(index)?);
            match attribute(&shim, value, wanted, at) {
                // Memory that the driver does not know has no attributes; that is no error here.
                Err(Code::INVALID_VALUE) => value.out().set(0u32)?,
                result => result?,
            }
        }
        Ok(())
    }
}

/// Writes one attribute of an address.
fn attribute(shim: &Shim, value: Place, wanted: CUpointer_attribute, at: CUdeviceptr) -> Result<(), Code> {
    value.is_wanted()?;
    if shim.host.flags(at).is_some() {
        return match wanted {
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => value.out().set(CU_MEMORYTYPE_HOST),
            CU_POINTER_ATTRIBUTE_HOST_POINTER => value.out().set(at),
            CU_POINTER_ATTRIBUTE_IS_MANAGED | CU_POINTER_ATTRIBUTE_MAPPED => value.out().set(0 as c_uint),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => value.out().set(0 as c_int),
            _ => Err(Code::INVALID_VALUE),
        };
    }
    let found = shim.client.find(at).ok_or(Code::INVALID_VALUE)?;
    match wanted {
        CU_POINTER_ATTRIBUTE_CONTEXT => value.out::<CUcontext>().set(handle(Kind::Context, found.context)),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => value.out().set(CU_MEMORYTYPE_DEVICE),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => value.out().set(at),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => value.out().set(c_uint::from(shim.managed.holds(at))),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => value.out().set(0 as c_int),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => value.out().set(found.span.at),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => value.out().set(found.span.bytes as usize),
        CU_POINTER_ATTRIBUTE_MAPPED => value.out().set(1 as c_uint),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if shim.managed.holds(at) => value.out().set(at),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => Err(Code::INVALID_VALUE),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

fn host_alloc(at: Out<Place>, bytes: usize, flags: c_uint) -> Result<(), Code> {
    at.is_wanted()?;
    let (mut shim, _) = Shim::current()?;
    shim.forbid_in_capture()?;
    at.set(Place::at(shim.host.allocate(bytes, flags)?))
}

fn host_register(at: Place, bytes: usize, flags: c_uint) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    if flags & !REGISTER_FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    shim.host.register(at.address(), bytes as u64, flags)
}
