//! Events.

use super::entry_points;
use crate::arguments::Out;
use crate::handles::{Kind, handle, number, stream_number};
use crate::shim::Shim;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

entry_points! { EVENT:
    fn cuEventCreate(event: Out<CUevent>, flags: c_uint) {
        event.is_wanted()?;
        let (mut shim, context) = Shim::current()?;
        event.set(handle(Kind::Event, shim.client.create_event(context, flags)?))
    }

    fn cuEventDestroy_v2(event: CUevent) {
        let event = number(Kind::Event, event)?;
        let mut shim = Shim::get()?;
        shim.client.destroy_event(event)?;
        shim.graphs.forget_event(event);
        Ok(())
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream, 0)
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        record(event, stream, flags)
    }

    fn cuEventQuery(event: CUevent) {
        let event = number(Kind::Event, event)?;
        let mut shim = Shim::get()?;
        shim.refuse_captured_event(event)?;
        shim.client.query_event(event)?;
        shim.managed_to_host()
    }

    fn cuEventSynchronize(event: CUevent) {
        let event = number(Kind::Event, event)?;
        let mut shim = Shim::get()?;
        shim.refuse_captured_event(event)?;
        let waited = shim.client.synchronize_event(event);
        shim.waited(waited)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
}

/// Records an event. In a captured stream it stands for the stream's work, or becomes a node if it is
/// external.
fn record(event: CUevent, stream: CUstream, flags: c_uint) -> Result<(), Code> {
    let (event, stream) = (number(Kind::Event, event)?, stream_number(stream)?);
    let (mut shim, _) = Shim::current()?;
    shim.client.is_recorded(event)?;
    match (shim.is_captured(stream)?, flags) {
        (true, CU_EVENT_RECORD_EXTERNAL) => shim.capture(stream, Work::Record(event)),
        (_, 0) if shim.graphs.capture_event(event, stream)? => Ok(()),
        (_, 0) => shim.client.record_event(event, stream),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn elapsed(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> Result<(), Code> {
    milliseconds.is_wanted()?;
    let (start, end) = (number(Kind::Event, start)?, number(Kind::Event, end)?);
    let mut shim = Shim::get()?;
    shim.refuse_captured_event(start)?;
    shim.refuse_captured_event(end)?;
    milliseconds.set(shim.client.elapsed(start, end)?)
}
