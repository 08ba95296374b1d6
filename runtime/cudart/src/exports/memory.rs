//! Device memory, and pinned memory of the host.

use super::copy::{Extent, Pitched};
use super::entry_points;
use crate::arguments::Out;
use crate::device::{chosen, current};
use crate::error::Code;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_cuda_library::pointer;

/// `cudaMemoryType`.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
const MANAGED: c_int = 3;

/// The attributes of an address: the beginning of `cudaPointerAttributes`, which all versions have.
#[repr(C)]
struct PointerAttributes {
    memory: c_int,
    device: c_int,
    on_device: u64,
    on_host: u64,
}

entry_points! {
    fn cudaMalloc(at: Out<CUdeviceptr>, bytes: usize) {
        at.is_wanted()?;
        let driver = current()?.driver;
        if bytes == 0 { at.set(0) } else { driver.cuMemAlloc_v2(at.raw(), bytes) }
    }

    fn cudaMallocPitch(at: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize) {
        at.is_wanted()?;
        pitch.is_wanted()?;
        current()?.driver.cuMemAllocPitch_v2(at.raw(), pitch.raw(), width, height, 16)
    }

    fn cudaMalloc3D(to: Out<Pitched>, extent: Extent) {
        to.is_wanted()?;
        let Extent { width, height, depth } = extent;
        let driver = current()?.driver;
        let rows = height.checked_mul(depth).ok_or(Code::INVALID_VALUE)?;
        let (mut at, mut pitch) = (0, 0);
        if width > 0 && rows > 0 {
            driver.cuMemAllocPitch_v2(&mut at, &mut pitch, width, rows, 16)?;
        }
        to.set(Pitched { at, pitch, width, height })
    }

    fn cudaMallocAsync(at: Out<CUdeviceptr>, bytes: usize, stream: CUstream) also cudaMallocAsync_ptsz {
        at.is_wanted()?;
        let driver = current()?.driver;
        if bytes == 0 { at.set(0) } else { driver.cuMemAllocAsync(at.raw(), bytes, stream) }
    }

    fn cudaMallocManaged(at: Out<CUdeviceptr>, bytes: usize, flags: c_uint) {
        at.is_wanted()?;
        current()?.driver.cuMemAllocManaged(at.raw(), bytes, flags)
    }

    /// `cudaFree(0)` creates the context; programs use it for that.
    fn cudaFree(at: CUdeviceptr) {
        let driver = current()?.driver;
        if at == 0 { Ok(()) } else { driver.cuMemFree_v2(at) }
    }

    fn cudaFreeAsync(at: CUdeviceptr, stream: CUstream) also cudaFreeAsync_ptsz {
        let driver = current()?.driver;
        if at == 0 { Ok(()) } else { driver.cuMemFreeAsync(at, stream) }
    }

    fn cudaMallocHost(at: Out<*mut c_void>, bytes: usize) {
        at.is_wanted()?;
        let driver = current()?.driver;
        if bytes == 0 { at.set(std::ptr::null_mut()) } else { driver.cuMemHostAlloc(at.raw(), bytes, 0) }
    }

    fn cudaHostAlloc(at: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        at.is_wanted()?;
        let driver = current()?.driver;
        if bytes == 0 { at.set(std::ptr::null_mut()) } else { driver.cuMemHostAlloc(at.raw(), bytes, flags) }
    }

    fn cudaFreeHost(at: u64) {
        let driver = current()?.driver;
        if at == 0 { Ok(()) } else { driver.cuMemFreeHost(pointer(at)) }
    }

    fn cudaHostRegister(at: u64, bytes: usize, flags: c_uint) {
        current()?.driver.cuMemHostRegister_v2(pointer(at), bytes, flags)
    }

    fn cudaHostUnregister(at: u64) {
        current()?.driver.cuMemHostUnregister(pointer(at))
    }

    fn cudaHostGetDevicePointer(at: Out<CUdeviceptr>, host: u64, flags: c_uint) {
        at.is_wanted()?;
        current()?.driver.cuMemHostGetDevicePointer_v2(at.raw(), pointer(host), flags)
    }

    fn cudaHostGetFlags(flags: Out<c_uint>, host: u64) {
        flags.is_wanted()?;
        current()?.driver.cuMemHostGetFlags(flags.raw(), pointer(host))
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        free.is_wanted()?;
        total.is_wanted()?;
        current()?.driver.cuMemGetInfo_v2(free.raw(), total.raw())
    }

    /// Memory that the driver does not know is ordinary host memory, which is no error.
    fn cudaPointerGetAttributes(attributes: Out<PointerAttributes>, at: u64) {
        attributes.is_wanted()?;
        let driver = current()?.driver;
        let number = |wanted| {
            let mut value: c_uint = 0;
            driver.cuPointerGetAttribute((&raw mut value).cast(), wanted, at).map(|()| value)
        };
        let address = |wanted| {
            let mut value = 0u64;
            driver.cuPointerGetAttribute((&raw mut value).cast(), wanted, at).map_or(0, |()| value)
        };
        let unknown = PointerAttributes { memory: UNREGISTERED, device: -1, on_device: 0, on_host: at };
        let memory = match number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
            Ok(memory) => memory,
            Err(Code::INVALID_VALUE) => return attributes.set(unknown),
            Err(code) => return Err(code),
        };
        let is_managed = number(CU_POINTER_ATTRIBUTE_IS_MANAGED).is_ok_and(|value| value != 0);
        attributes.set(PointerAttributes {
            memory: if is_managed { MANAGED } else if memory == CU_MEMORYTYPE_HOST { HOST } else { DEVICE },
            device: number(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL).map_or(chosen(), |ordinal| ordinal as c_int),
            on_device: address(CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
            on_host: address(CU_POINTER_ATTRIBUTE_HOST_POINTER),
        })
    }
}
