//! Memory, copies and fills.

use super::{entry_points, put};
use crate::runtime::Runtime;
use crate::space::Kind;
use crate::status::Status;
use crate::work::Work;
use atoll_hip_api::types::*;

entry_points! { MEMORY:
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) {
        let runtime = Runtime::get()?;
        let (unused, all) = runtime.space.free_and_total(runtime.current()?.ordinal);
        // SAFETY: as the caller guarantees.
        unsafe {
            put(free, unused as usize)?;
            put(total, all as usize)
        }
    }

    fn hipMalloc(pointer: *mut hipDeviceptr_t, bytes: usize) {
        let runtime = Runtime::get()?;
        let at = runtime.space.take(runtime.current()?.ordinal, bytes as u64)?;
        // SAFETY: as the caller guarantees.
        unsafe { put(pointer, at) }
    }

    fn hipFree(pointer: hipDeviceptr_t) {
        let runtime = Runtime::get()?;
        if pointer == 0 {
            return Ok(());
        }
        // Work that may use the memory ends first.
        let waited = runtime.current()?.synchronize_all();
        runtime.space.give_back(pointer, |kind| matches!(kind, Kind::Device(_)))?;
        waited
    }

    fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let runtime = Runtime::get()?;
        runtime.current()?;
        let at = runtime.space.take_pinned(bytes as u64)?;
        // SAFETY: as the caller guarantees.
        unsafe { put(pointer, std::ptr::with_exposed_provenance_mut(at as usize)) }
    }

    fn hipHostFree(pointer: *mut c_void) {
        let runtime = Runtime::get()?;
        let waited = runtime.current()?.synchronize_all();
        runtime.space.give_back(pointer as u64, |kind| kind == Kind::Pinned)?;
        waited
    }

    fn hipHostRegister(pointer: *mut c_void, bytes: usize, _flags: c_uint) {
        let runtime = Runtime::get()?;
        runtime.current()?;
        runtime.space.register(pointer as u64, bytes as u64)
    }

    fn hipHostUnregister(pointer: *mut c_void) {
        let runtime = Runtime::get()?;
        let answer = runtime.space.give_back(pointer as u64, |kind| kind == Kind::Registered);
        answer.map_err(|_| Status::HostMemoryNotRegistered)
    }

    fn hipHostGetDevicePointer(device: *mut hipDeviceptr_t, host: *mut c_void, _flags: c_uint) {
        match Runtime::get()?.space.kind_at(host as u64) {
            // SAFETY: as the caller guarantees.
            Some(Kind::Pinned | Kind::Registered) => unsafe { put(device, host as u64) },
            _ => Err(Status::InvalidValue),
        }
    }

    fn hipIpcGetMemHandle(handle: *mut hipIpcMemHandle_t, pointer: hipDeviceptr_t) {
        let runtime = Runtime::get()?;
        runtime.current()?;
        let reserved = runtime.space.share(pointer)?;
        // SAFETY: as the caller guarantees.
        unsafe { put(handle, hipIpcMemHandle_t { reserved }) }
    }

    fn hipIpcOpenMemHandle(pointer: *mut hipDeviceptr_t, handle: hipIpcMemHandle_t, _flags: c_uint) {
        let runtime = Runtime::get()?;
        runtime.current()?;
        if runtime.options.refuses_ipc {
            return Err(Status::MapFailed);
        }
        let at = runtime.space.open(&handle.reserved)?;
        // SAFETY: as the caller guarantees.
        unsafe { put(pointer, at) }
    }

    fn hipIpcCloseMemHandle(pointer: hipDeviceptr_t) {
        let runtime = Runtime::get()?;
        let waited = runtime.current()?.synchronize_all();
        runtime.space.give_back(pointer, |kind| kind == Kind::Foreign)?;
        waited
    }

    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t) {
        copy(to, from as u64, bytes as u64, stream)
    }

    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t) {
        copy(to as u64, from, bytes as u64, stream)
    }

    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t) {
        known(from, bytes as u64)?;
        copy(to, from, bytes as u64, stream)
    }

    fn hipMemsetD8Async(to: hipDeviceptr_t, value: c_uchar, count: usize, stream: hipStream_t) {
        known(to, count as u64)?;
        Runtime::get()?.streams.get(stream)?.push(stream.bits(), Work::Fill { to, value, bytes: count as u64 })
    }

    fn hipMemsetD32Async(to: hipDeviceptr_t, value: c_int, count: usize, stream: hipStream_t) {
        words(to, value as u32, count as u64, stream)
    }

    fn hipStreamWriteValue32(stream: hipStream_t, pointer: hipDeviceptr_t, value: u32, _flags: c_uint) {
        words(pointer, value, 1, stream)
    }
}

/// Returns an error if a range is not inside memory that the library knows.
fn known(at: u64, bytes: u64) -> Result<(), Status> {
    if Runtime::get()?.space.has(at, bytes) { Ok(()) } else { Err(Status::InvalidValue) }
}

/// Adds a copy. A range that the library does not know is the program's; at most one of the two may
/// be.
fn copy(to: u64, from: u64, bytes: u64, stream: hipStream_t) -> Result<(), Status> {
    if known(to, bytes).is_err() && known(from, bytes).is_err() || to == 0 || from == 0 {
        return Err(Status::InvalidValue);
    }
    Runtime::get()?.streams.get(stream)?.push(stream.bits(), Work::Copy { to, from, bytes })
}

fn words(to: u64, value: u32, count: u64, stream: hipStream_t) -> Result<(), Status> {
    let bytes = count.checked_mul(4).filter(|_| to.is_multiple_of(4)).ok_or(Status::InvalidValue)?;
    known(to, bytes)?;
    Runtime::get()?.streams.get(stream)?.push(stream.bits(), Work::FillWords { to, value, count })
}
