//! Events.

use super::entry_points;
use crate::arguments::Out;
use crate::device::current;
use atoll_cuda_api::types::*;

entry_points! {
    fn cudaEventCreate(event: Out<CUevent>) {
        event.is_wanted()?;
        current()?.driver.cuEventCreate(event.raw(), 0)
    }

    fn cudaEventCreateWithFlags(event: Out<CUevent>, flags: c_uint) {
        event.is_wanted()?;
        current()?.driver.cuEventCreate(event.raw(), flags)
    }

    fn cudaEventDestroy(event: CUevent) {
        current()?.driver.cuEventDestroy_v2(event)
    }

    fn cudaEventRecord(event: CUevent, stream: CUstream) also cudaEventRecord_ptsz {
        current()?.driver.cuEventRecord(event, stream)
    }

    fn cudaEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) also cudaEventRecordWithFlags_ptsz {
        current()?.driver.cuEventRecordWithFlags(event, stream, flags)
    }

    fn cudaEventQuery(event: CUevent) {
        current()?.driver.cuEventQuery(event)
    }

    fn cudaEventSynchronize(event: CUevent) {
        current()?.driver.cuEventSynchronize(event)
    }

    fn cudaEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        milliseconds.is_wanted()?;
        current()?.driver.cuEventElapsedTime(milliseconds.raw(), start, end)
    }

    fn cudaEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        milliseconds.is_wanted()?;
        current()?.driver.cuEventElapsedTime(milliseconds.raw(), start, end)
    }
}
