//! Virtual memory.

use super::device::check_device;
use super::entry_points;
use crate::arguments::{In, Out, Place};
use crate::log::log;
use crate::shim::Shim;
use crate::virtual_memory::GRANULARITY_BYTES;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, Span};

/// The context number of reservations, which is none of the program's.
const NO_CONTEXT: u32 = 0;

/// Access to read, and to read and write.
const ACCESS: [CUmemAccess_flags; 3] = [0, 1, 3];

entry_points! { VIRTUAL_MEMORY:
    fn cuMemGetAllocationGranularity(
        bytes: Out<usize>, properties: In<CUmemAllocationProp_v1>, _option: CUmemAllocationGranularity_flags
    ) {
        Shim::check()?;
        check_properties(properties)?;
        bytes.set(GRANULARITY_BYTES as usize)
    }

    fn cuMemAddressReserve(
        at: Out<CUdeviceptr>, bytes: usize, align: usize, _wanted: CUdeviceptr, flags: c_ulonglong
    ) {
        at.is_wanted()?;
        let mut shim = Shim::get()?;
        let bytes = bytes as u64;
        let is_granular = bytes > 0 && bytes.is_multiple_of(GRANULARITY_BYTES);
        if !is_granular || (align != 0 && !align.is_power_of_two()) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let reserved = shim.client.allocate_at(NO_CONTEXT, bytes, GRANULARITY_BYTES.max(align as u64));
        if reserved == Err(Code::OUT_OF_MEMORY) {
            log(&format_args!(
                "cuMemAddressReserve: {bytes} bytes are not free; in a session, a reservation takes its memory at once"
            ));
        }
        shim.virtual_memory.reserved(Span { at: reserved?, bytes });
        at.set(reserved?)
    }

    fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) {
        let mut shim = Shim::get()?;
        shim.virtual_memory.unreserve(Span { at, bytes: bytes as u64 })?;
        shim.client.free(at)
    }

    fn cuMemCreate(
        physical: Out<CUmemGenericAllocationHandle_v1>, bytes: usize, properties: In<CUmemAllocationProp_v1>,
        flags: c_ulonglong
    ) {
        physical.is_wanted()?;
        let mut shim = Shim::get()?;
        check_properties(properties)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (_, total) = shim.client.memory_bytes();
        if shim.virtual_memory.created_bytes().saturating_add(bytes as u64) > total {
            return Err(Code::OUT_OF_MEMORY);
        }
        physical.set(shim.virtual_memory.create(bytes as u64)?)
    }

    fn cuMemRelease(physical: CUmemGenericAllocationHandle_v1) {
        Shim::get()?.virtual_memory.release(physical)
    }

    fn cuMemRetainAllocationHandle(physical: Out<CUmemGenericAllocationHandle_v1>, at: Place) {
        physical.is_wanted()?;
        physical.set(Shim::get()?.virtual_memory.retain(at.address())?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        properties: Out<CUmemAllocationProp_v1>, physical: CUmemGenericAllocationHandle_v1
    ) {
        Shim::get()?.virtual_memory.check(physical)?;
        properties.set(CUmemAllocationProp_v1 {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_kinds: 0,
            location: CUmemLocation_v1 { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            security_attributes: std::ptr::null_mut(),
            flags: [0; 8],
        })
    }

    fn cuMemMap(
        at: CUdeviceptr, bytes: usize, offset: usize, physical: CUmemGenericAllocationHandle_v1, flags: c_ulonglong
    ) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        Shim::get()?.virtual_memory.map(Span { at, bytes: bytes as u64 }, offset as u64, physical)
    }

    fn cuMemUnmap(at: CUdeviceptr, bytes: usize) {
        Shim::get()?.virtual_memory.unmap(Span { at, bytes: bytes as u64 })
    }

    fn cuMemSetAccess(at: CUdeviceptr, bytes: usize, access: In<CUmemAccessDesc_v1>, count: usize) {
        let mut shim = Shim::get()?;
        for index in 0..count {
            let access = access.get(index)?;
            if access.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || !ACCESS.contains(&access.flags) {
                return Err(Code::INVALID_VALUE);
            }
            check_device(access.location.id)?;
            shim.virtual_memory.set_access(Span { at, bytes: bytes as u64 }, access.flags)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<c_ulonglong>, location: In<CUmemLocation_v1>, at: CUdeviceptr) {
        let (shim, location) = (Shim::get()?, location.get(0)?);
        if location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        check_device(location.id)?;
        flags.set(shim.virtual_memory.access(at)? as c_ulonglong)
    }
}

/// Returns an error unless memory with these properties is the device's. Programs ask for memory that
/// they could export, and export it later if at all, so that is no error here.
fn check_properties(properties: In<CUmemAllocationProp_v1>) -> Result<(), Code> {
    let properties = properties.get(0)?;
    if properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    if properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(Code::NOT_SUPPORTED);
    }
    check_device(properties.location.id)
}
