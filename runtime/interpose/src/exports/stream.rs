//! Streams.

use super::entry_points;
use crate::arguments::{Out, Place};
use crate::handles::{Kind, handle, number, stream_number};
use crate::shim::Shim;
use crate::work::{HostCall, Work};
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
        let stream = number(Kind::Stream, stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.client.destroy_stream(stream)?;
        shim.graphs.forget_stream(stream);
        shim.sweep_graph_memory()
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.refuse_captured(stream)?;
        let waited = shim.client.synchronize_stream(stream);
        shim.waited(waited)
    }

    fn cuStreamQuery(stream: CUstream) {
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        shim.refuse_captured(stream)?;
        shim.client.query_stream(stream)?;
        shim.managed_to_host()
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

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        let (stream, event) = (stream_number(stream)?, number(Kind::Event, event)?);
        let (mut shim, _) = Shim::current()?;
        let is_captured = shim.is_captured(stream)?;
        let is_recorded = shim.client.is_recorded(event)?;
        match (is_captured, flags) {
            (true, CU_EVENT_WAIT_EXTERNAL) => return shim.capture(stream, Work::Wait(event)),
            (_, 0) => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        let stands_for_captured = shim.graphs.is_captured(event);
        if stream == 0 && stands_for_captured {
            return Err(Code::STREAM_CAPTURE_IMPLICIT);
        }
        // An event that was never recorded counts as complete, also for a captured stream.
        if (is_recorded || stands_for_captured) && shim.graphs.capture_wait(stream, event)? {
            return Ok(());
        }
        shim.client.wait_event(stream, event)
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: Place) {
        let call = HostCall { function: function.ok_or(Code::INVALID_VALUE)?, data: data.address() };
        let stream = stream_number(stream)?;
        let (mut shim, _) = Shim::current()?;
        if shim.is_captured(stream)? {
            return shim.capture(stream, Work::Host(call));
        }
        let waited = shim.client.synchronize_stream(stream);
        shim.waited(waited)?;
        drop(shim);
        call.call();
        Ok(())
    }

    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: Place, _flags: c_uint) {
        let callback = callback.ok_or(Code::INVALID_VALUE)?;
        let waited = {
            let (mut shim, _) = Shim::current()?;
            let stream = stream_number(stream)?;
            shim.client.check_stream(stream)?;
            shim.refuse_captured(stream)?;
            let waited = shim.client.synchronize_stream(stream);
            shim.waited(waited)
        };
        // SAFETY: the program passes a function to be called with these values. The lock is not held
        // during the call. The callback gets the error. The call itself succeeds, since on an error
        // the program would not expect the callback to have run.
        unsafe { callback(stream, waited.err().map_or(0, |code| code.0), pointer(data)) };
        Ok(())
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
