//! Streams.

use super::entry_points;
use crate::arguments::Out;
use crate::device::{chosen, current};
use atoll_cuda_api::types::*;
use atoll_cuda_library::pointer;

entry_points! {
    fn cudaStreamCreate(stream: Out<CUstream>) {
        stream.is_wanted()?;
        current()?.driver.cuStreamCreate(stream.raw(), 0)
    }

    fn cudaStreamCreateWithFlags(stream: Out<CUstream>, flags: c_uint) {
        stream.is_wanted()?;
        current()?.driver.cuStreamCreate(stream.raw(), flags)
    }

    fn cudaStreamCreateWithPriority(stream: Out<CUstream>, flags: c_uint, priority: c_int) {
        stream.is_wanted()?;
        current()?.driver.cuStreamCreateWithPriority(stream.raw(), flags, priority)
    }

    fn cudaStreamDestroy(stream: CUstream) {
        current()?.driver.cuStreamDestroy_v2(stream)
    }

    fn cudaStreamSynchronize(stream: CUstream) also cudaStreamSynchronize_ptsz {
        current()?.driver.cuStreamSynchronize(stream)
    }

    fn cudaStreamQuery(stream: CUstream) also cudaStreamQuery_ptsz {
        current()?.driver.cuStreamQuery(stream)
    }

    fn cudaStreamGetPriority(stream: CUstream, priority: Out<c_int>) also cudaStreamGetPriority_ptsz {
        priority.is_wanted()?;
        current()?.driver.cuStreamGetPriority(stream, priority.raw())
    }

    fn cudaStreamGetFlags(stream: CUstream, flags: Out<c_uint>) also cudaStreamGetFlags_ptsz {
        flags.is_wanted()?;
        current()?.driver.cuStreamGetFlags(stream, flags.raw())
    }

    fn cudaStreamGetId(stream: CUstream, id: Out<c_ulonglong>) also cudaStreamGetId_ptsz {
        id.is_wanted()?;
        current()?.driver.cuStreamGetId(stream, id.raw())
    }

    /// The device of a stream is the thread's: `cuStreamGetFlags` refuses a stream of another
    /// context.
    fn cudaStreamGetDevice(stream: CUstream, device: Out<c_int>) also cudaStreamGetDevice_ptsz {
        let mut flags = 0;
        current()?.driver.cuStreamGetFlags(stream, &mut flags)?;
        device.set(chosen())
    }

    fn cudaStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) also cudaStreamWaitEvent_ptsz {
        current()?.driver.cuStreamWaitEvent(stream, event, flags)
    }

    fn cudaLaunchHostFunc(stream: CUstream, function: CUhostFn, data: u64) also cudaLaunchHostFunc_ptsz {
        current()?.driver.cuLaunchHostFunc(stream, function, pointer(data))
    }

    /// The callback gets the runtime's error, which has the driver's number.
    fn cudaStreamAddCallback(
        stream: CUstream, callback: CUstreamCallback, data: u64, flags: c_uint
    ) also cudaStreamAddCallback_ptsz {
        current()?.driver.cuStreamAddCallback(stream, callback, pointer(data), flags)
    }

    fn cudaStreamIsCapturing(stream: CUstream, status: Out<CUstreamCaptureStatus>) also cudaStreamIsCapturing_ptsz {
        status.is_wanted()?;
        current()?.driver.cuStreamIsCapturing(stream, status.raw())
    }

    fn cudaStreamBeginCapture(stream: CUstream, mode: CUstreamCaptureMode) also cudaStreamBeginCapture_ptsz {
        current()?.driver.cuStreamBeginCapture_v2(stream, mode)
    }

    fn cudaStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) also cudaStreamEndCapture_ptsz {
        graph.is_wanted()?;
        current()?.driver.cuStreamEndCapture(stream, graph.raw())
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        mode.is_wanted()?;
        current()?.driver.cuThreadExchangeStreamCaptureMode(mode.raw())
    }
}
