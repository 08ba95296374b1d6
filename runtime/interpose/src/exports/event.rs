//! Events.

use super::entry_points;
use crate::arguments::Out;
use crate::handles::{Kind, handle, number, stream_number};
use crate::shim::Shim;
use atoll_cuda_api::types::*;
use atoll_session::Code;

entry_points! { EVENT:
    fn cuEventCreate(event: Out<CUevent>, flags: c_uint) {
        event.is_wanted()?;
        let (mut shim, context) = Shim::current()?;
        event.set(handle(Kind::Event, shim.client.create_event(context, flags)?))
    }

    fn cuEventDestroy_v2(event: CUevent) {
        Shim::get()?.client.destroy_event(number(Kind::Event, event)?)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        if flags == 0 { record(event, stream) } else { Err(Code::NOT_SUPPORTED) }
    }

    fn cuEventQuery(event: CUevent) {
        Shim::get()?.client.query_event(number(Kind::Event, event)?)
    }

    fn cuEventSynchronize(event: CUevent) {
        Shim::get()?.client.synchronize_event(number(Kind::Event, event)?)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
}

fn record(event: CUevent, stream: CUstream) -> Result<(), Code> {
    let (event, stream) = (number(Kind::Event, event)?, stream_number(stream)?);
    Shim::current()?.0.client.record_event(event, stream)
}

fn elapsed(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> Result<(), Code> {
    milliseconds.is_wanted()?;
    let (start, end) = (number(Kind::Event, start)?, number(Kind::Event, end)?);
    milliseconds.set(Shim::get()?.client.elapsed(start, end)?)
}
