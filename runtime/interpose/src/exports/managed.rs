//! Managed memory.

use super::device::check_device;
use super::entry_points;
use crate::arguments::Out;
use crate::handles::stream_number;
use crate::log::{log, log_missing};
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// The host, where a device is expected.
const CPU: CUdevice = -1;

entry_points! { MANAGED:
    fn cuMemAllocManaged(at: Out<CUdeviceptr>, bytes: usize, flags: c_uint) {
        at.is_wanted()?;
        let (mut shim, context) = Shim::current()?;
        shim.forbid_in_capture()?;
        check_attachment(flags, "cuMemAllocManaged for the host alone")?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let allocated = shim.allocate_managed(context, bytes as u64);
        if allocated == Err(Code::NOT_SUPPORTED) {
            log(&"cuMemAllocManaged returns CUDA_ERROR_NOT_SUPPORTED: the program uses addresses of device memory");
        }
        at.set(allocated?)
    }

    fn cuStreamAttachMemAsync(stream: CUstream, at: CUdeviceptr, _bytes: usize, flags: c_uint) {
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.is_captured(stream)?;
        if !shim.managed.holds(at) {
            return Err(Code::INVALID_VALUE);
        }
        check_attachment(flags, "cuStreamAttachMemAsync to the host or one stream")
    }

    fn cuMemPrefetchAsync(at: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream) {
        if device != CPU {
            check_device(device)?;
        }
        prefetch(at, bytes, stream)
    }

    fn cuMemPrefetchAsync_v2(
        at: CUdeviceptr, bytes: usize, location: CUmemLocation_v1, flags: c_uint, stream: CUstream
    ) {
        check_location(location)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        prefetch(at, bytes, stream)
    }

    fn cuMemAdvise(at: CUdeviceptr, bytes: usize, advice: CUmem_advise, device: CUdevice) {
        if device != CPU {
            check_device(device)?;
        }
        advise(at, bytes, advice)
    }

    fn cuMemAdvise_v2(at: CUdeviceptr, bytes: usize, advice: CUmem_advise, location: CUmemLocation_v1) {
        // This advice has no place.
        if !(CU_MEM_ADVISE_SET_READ_MOSTLY..=CU_MEM_ADVISE_UNSET_READ_MOSTLY).contains(&advice) {
            check_location(location)?;
        }
        advise(at, bytes, advice)
    }
}

/// Returns an error unless all streams may use managed memory.
fn check_attachment(flags: c_uint, what: &'static str) -> Result<(), Code> {
    match flags {
        CU_MEM_ATTACH_GLOBAL => Ok(()),
        CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE => {
            log_missing(what);
            Err(Code::NOT_SUPPORTED)
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn check_location(location: CUmemLocation_v1) -> Result<(), Code> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => check_device(location.id),
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// A hint: the memory moves when it is used.
fn prefetch(at: CUdeviceptr, bytes: usize, stream: CUstream) -> Result<(), Code> {
    let stream = stream_number(stream)?;
    let (mut shim, _) = Shim::current()?;
    if shim.is_captured(stream)? {
        shim.graphs.invalidate(stream);
        return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
    }
    check_range(&shim, at, bytes)
}

/// A hint.
fn advise(at: CUdeviceptr, bytes: usize, advice: CUmem_advise) -> Result<(), Code> {
    let (shim, _) = Shim::current()?;
    if !(CU_MEM_ADVISE_SET_READ_MOSTLY..=CU_MEM_ADVISE_UNSET_ACCESSED_BY).contains(&advice) {
        return Err(Code::INVALID_VALUE);
    }
    check_range(&shim, at, bytes)
}

fn check_range(shim: &Shim, at: u64, bytes: usize) -> Result<(), Code> {
    if bytes > 0 && shim.managed.contains(at, bytes as u64) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}
