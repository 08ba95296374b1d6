//! Pools of device memory. The structs and numbers of the runtime are those of the driver.

use super::entry_points;
use crate::arguments::{In, Out};
use crate::device::current;
use atoll_cuda_api::types::*;

entry_points! {
    fn cudaMallocFromPoolAsync(
        at: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream
    ) also cudaMallocFromPoolAsync_ptsz {
        at.is_wanted()?;
        let driver = current()?.driver;
        if bytes == 0 { at.set(0) } else { driver.cuMemAllocFromPoolAsync(at.raw(), bytes, pool, stream) }
    }

    fn cudaDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: c_int) {
        pool.is_wanted()?;
        current()?.driver.cuDeviceGetDefaultMemPool(pool.raw(), device)
    }

    fn cudaDeviceGetMemPool(pool: Out<CUmemoryPool>, device: c_int) {
        pool.is_wanted()?;
        current()?.driver.cuDeviceGetMemPool(pool.raw(), device)
    }

    fn cudaDeviceSetMemPool(device: c_int, pool: CUmemoryPool) {
        current()?.driver.cuDeviceSetMemPool(device, pool)
    }

    fn cudaMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps_v1>) {
        pool.is_wanted()?;
        current()?.driver.cuMemPoolCreate(pool.raw(), properties.raw())
    }

    fn cudaMemPoolDestroy(pool: CUmemoryPool) {
        current()?.driver.cuMemPoolDestroy(pool)
    }

    fn cudaMemPoolTrimTo(pool: CUmemoryPool, bytes_to_keep: usize) {
        current()?.driver.cuMemPoolTrimTo(pool, bytes_to_keep)
    }

    fn cudaMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>) {
        value.is_wanted()?;
        current()?.driver.cuMemPoolSetAttribute(pool, attribute, value.raw())
    }

    fn cudaMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Out<c_void>) {
        value.is_wanted()?;
        current()?.driver.cuMemPoolGetAttribute(pool, attribute, value.raw())
    }

    fn cudaMemPoolSetAccess(pool: CUmemoryPool, access: In<CUmemAccessDesc_v1>, count: usize) {
        current()?.driver.cuMemPoolSetAccess(pool, access.raw(), count)
    }

    fn cudaMemPoolGetAccess(
        flags: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: Out<CUmemLocation_v1>
    ) {
        flags.is_wanted()?;
        current()?.driver.cuMemPoolGetAccess(flags.raw(), pool, location.raw())
    }
}
