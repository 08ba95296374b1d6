//! Allocations in stream order, and pools of device memory.

use super::device::check_device;
use super::entry_points;
use crate::arguments::{In, Out, Place};
use crate::handles::{Kind, handle, number, stream_number};
use crate::pools::{Attribute, DEFAULT};
use crate::shim::Shim;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// Attributes of pools that are numbers of 4 bytes have numbers up to this.
const FLAGS_END: CUmemPool_attribute = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES + 2;

entry_points! { POOL:
    fn cuMemAllocAsync(at: Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        allocate(at, bytes, None, stream)
    }

    fn cuMemAllocFromPoolAsync(at: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        allocate(at, bytes, Some(pool_number(pool)?), stream)
    }

    fn cuMemFreeAsync(at: CUdeviceptr, stream: CUstream) {
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        if !shim.is_captured(stream)? {
            return shim.free(at);
        }
        // A graph frees only what a graph allocates.
        if !shim.graph_memory.holds(at) {
            shim.graphs.invalidate(stream);
            return Err(Code::INVALID_VALUE);
        }
        shim.capture(stream, Work::Free(at))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice) {
        Shim::check()?;
        check_device(device)?;
        pool.set(handle(Kind::Pool, DEFAULT))
    }

    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        pool.set(handle(Kind::Pool, shim.pools.current()))
    }

    fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) {
        let mut shim = Shim::get()?;
        check_device(device)?;
        shim.pools.set_current(pool_number(pool)?)
    }

    fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps_v1>) {
        pool.is_wanted()?;
        let mut shim = Shim::get()?;
        let properties = properties.get(0)?;
        if properties.allocation_kind != CU_MEM_ALLOCATION_TYPE_PINNED || !properties.security_attributes.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // Memory of the host, and of other processes.
        if properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE || properties.handle_kinds != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        check_device(properties.location.id)?;
        pool.set(handle(Kind::Pool, shim.pools.create(properties.max_bytes as u64)?))
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        Shim::get()?.pools.destroy(pool_number(pool)?)
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _bytes_to_keep: usize) {
        // A pool keeps nothing that was freed.
        Shim::get()?.pools.check(pool_number(pool)?)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Place) {
        let value = if attribute <= FLAGS_END {
            Attribute::Flag(value.values().get(0)?)
        } else {
            Attribute::Bytes(value.values().get(0)?)
        };
        Shim::get()?.pools.set_attribute(pool_number(pool)?, attribute, value)
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Place) {
        match Shim::get()?.pools.attribute(pool_number(pool)?, attribute)? {
            Attribute::Flag(flag) => value.out().set(flag),
            Attribute::Bytes(bytes) => value.out().set(bytes),
        }
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: In<CUmemAccessDesc_v1>, count: usize) {
        Shim::get()?.pools.check(pool_number(pool)?)?;
        for index in 0..count {
            let access = access.get(index)?;
            check_place(access.location)?;
            // The device of the pool always has access.
            if access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
                return Err(Code::INVALID_VALUE);
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: In<CUmemLocation_v1>) {
        Shim::get()?.pools.check(pool_number(pool)?)?;
        check_place(location.get(0)?)?;
        flags.set(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }
}

/// The number of a pool. A handle of something else is an invalid value, as for a pool that was
/// destroyed.
fn pool_number(pool: CUmemoryPool) -> Result<u32, Code> {
    number(Kind::Pool, pool).map_err(|_| Code::INVALID_VALUE)
}

fn check_place(location: CUmemLocation_v1) -> Result<(), Code> {
    if location.kind == CU_MEM_LOCATION_TYPE_DEVICE { check_device(location.id) } else { Err(Code::INVALID_VALUE) }
}

fn allocate(at: Out<CUdeviceptr>, bytes: usize, pool: Option<u32>, stream: CUstream) -> Result<(), Code> {
    at.is_wanted()?;
    let stream = stream_number(stream)?;
    let (mut shim, context) = Shim::current()?;
    let pool = pool.unwrap_or(shim.pools.current());
    if shim.is_captured(stream)? {
        // The memory is the graph's, not the pool's.
        shim.pools.check(pool)?;
        let share = shim.take_graph_memory(context, bytes as u64)?;
        let allocated = share.at;
        shim.capture(stream, Work::Alloc(share))?;
        return at.set(allocated);
    }
    shim.pools.admit(pool, bytes as u64)?;
    let allocated = shim.client.allocate(context, bytes as u64)?;
    shim.pools.allocated(pool, allocated, bytes as u64);
    at.set(allocated)
}
