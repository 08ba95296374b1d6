//! Managed memory. CUDA 13 names a place where older versions name a device; the address of the code
//! that calls does not say which version it was built for, so the versions that are loaded decide.

use super::entry_points;
use crate::device::current;
use crate::version::since;
use atoll_cuda_api::types::*;

/// A place in the one register in which it is passed.
fn place(bits: u64) -> CUmemLocation_v1 {
    CUmemLocation_v1 { kind: bits as c_int, id: (bits >> 32) as c_int }
}

entry_points! {
    /// The last arguments are a device and a stream, or since CUDA 13 a place, flags and a stream.
    fn cudaMemPrefetchAsync(
        at: CUdeviceptr, bytes: usize, third: u64, fourth: u64, fifth: CUstream
    ) also cudaMemPrefetchAsync_ptsz {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuMemPrefetchAsync_v2(at, bytes, place(third), fourth as c_uint, fifth)
        } else {
            driver.cuMemPrefetchAsync(at, bytes, third as c_int, CUstream::from_bits(fourth))
        }
    }

    fn cudaMemPrefetchAsync_v2(
        at: CUdeviceptr, bytes: usize, location: CUmemLocation_v1, flags: c_uint, stream: CUstream
    ) also cudaMemPrefetchAsync_v2_ptsz {
        current()?.driver.cuMemPrefetchAsync_v2(at, bytes, location, flags, stream)
    }

    /// The last argument is a device, or since CUDA 13 a place.
    fn cudaMemAdvise(at: CUdeviceptr, bytes: usize, advice: CUmem_advise, fourth: u64) {
        let driver = current()?.driver;
        if since(13000)? {
            driver.cuMemAdvise_v2(at, bytes, advice, place(fourth))
        } else {
            driver.cuMemAdvise(at, bytes, advice, fourth as c_int)
        }
    }

    fn cudaMemAdvise_v2(at: CUdeviceptr, bytes: usize, advice: CUmem_advise, location: CUmemLocation_v1) {
        current()?.driver.cuMemAdvise_v2(at, bytes, advice, location)
    }

    fn cudaStreamAttachMemAsync(
        stream: CUstream, at: CUdeviceptr, bytes: usize, flags: c_uint
    ) also cudaStreamAttachMemAsync_ptsz {
        current()?.driver.cuStreamAttachMemAsync(stream, at, bytes, flags)
    }
}
