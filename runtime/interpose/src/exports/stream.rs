//! Streams.

use super::entry_points;
use crate::arguments::{Out, Place};
use crate::handles::{Kind, handle, number, stream_number};
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

entry_points! { STREAM:
    fn cuStreamCreate(stream: Out<CUstream>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        Shim::current()?.0.client.destroy_stream(number(Kind::Stream, stream)?)
    }

    fn cuStreamSynchronize(stream: CUstream) {
        Shim::current()?.0.client.synchronize_stream(stream_number(stream)?)
    }

    fn cuStreamQuery(stream: CUstream) {
        Shim::current()?.0.client.query_stream(stream_number(stream)?)
    }

    fn cuStreamGetPriority(stream: CUstream, priority: Out<c_int>) {
        let facts = Shim::current()?.0.client.stream_facts(stream_number(stream)?)?;
        priority.set(facts.map_or(0, |(_, _, priority)| priority))
    }

    fn cuStreamGetFlags(stream: CUstream, flags: Out<c_uint>) {
        let facts = Shim::current()?.0.client.stream_facts(stream_number(stream)?)?;
        flags.set(facts.map_or(0, |(_, flags, _)| flags))
    }

    fn cuStreamGetCtx(stream: CUstream, context: Out<CUcontext>) {
        let (shim, current) = Shim::current()?;
        let facts = shim.client.stream_facts(stream_number(stream)?)?;
        context.set(handle(Kind::Context, facts.map_or(current, |(context, _, _)| context)))
    }

    fn cuStreamGetId(stream: CUstream, id: Out<c_ulonglong>) {
        let stream = stream_number(stream)?;
        Shim::current()?.0.client.check_stream(stream)?;
        id.set(stream.into())
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) {
        let (stream, event) = (stream_number(stream)?, number(Kind::Event, event)?);
        Shim::current()?.0.client.wait_event(stream, event)
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: Place) {
        let function = function.ok_or(Code::INVALID_VALUE)?;
        Shim::current()?.0.client.synchronize_stream(stream_number(stream)?)?;
        // SAFETY: the program passes a function to be called with this value. The lock is not held
        // during the call.
        unsafe { function(pointer(data)) };
        Ok(())
    }

    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: Place, _flags: c_uint) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        let waited = {
            let (mut shim, _) = Shim::current()?;
            let stream = stream_number(stream)?;
            shim.client.check_stream(stream)?;
            shim.client.synchronize_stream(stream)
        };
        // SAFETY: as above. The callback gets the error. The call itself succeeds, since on an
        // error the program would not expect the callback to have run.
        unsafe { callback(stream, waited.err().map_or(0, |code| code.0), pointer(data)) };
        Ok(())
    }

    fn cuStreamIsCapturing(stream: CUstream, status: Out<CUstreamCaptureStatus>) {
        Shim::current()?.0.client.check_stream(stream_number(stream)?)?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, _id: Out<u64>, _graph: Out<CUgraph>,
        _dependencies: Place, _count: Out<usize>
    ) {
        Shim::current()?.0.client.check_stream(stream_number(stream)?)?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        Shim::check()?;
        // Nothing is captured, so the mode has no effect. The previous mode is always the default.
        mode.set(CU_STREAM_CAPTURE_MODE_GLOBAL)
    }
}

fn create(stream: Out<CUstream>, flags: c_uint, priority: c_int) -> Result<(), Code> {
    stream.is_wanted()?;
    let (mut shim, context) = Shim::current()?;
    stream.set(handle(Kind::Stream, shim.client.create_stream(context, flags, priority)?))
}

fn pointer(place: Place) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(place.address() as usize)
}
