//! Events.

use super::arguments::Out;
use super::entry_points;
use crate::driver::Driver;
use crate::event::{Event, Recorded};
use crate::marker::Marker;
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use std::ffi::c_uint;
use std::sync::Arc;

entry_points! { EVENT:
    fn cuEventCreate(event: Out<CUevent>, flags: c_uint) {
        event.is_wanted()?;
        let driver = Driver::get()?;
        let context = driver.current()?;
        if flags == CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS {
            return Err(Status::NotSupported);
        }
        if flags & !(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != 0 {
            return Err(Status::InvalidValue);
        }
        let handle = Handle::fresh();
        driver.events.put(handle, Arc::new(Event::new(context, flags & CU_EVENT_DISABLE_TIMING == 0)));
        event.set(handle.raw())
    }

    fn cuEventDestroy_v2(event: CUevent) {
        Driver::get()?.events.remove(Handle::of(event))?.context.check()
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        if flags == 0 { record(event, stream) } else { Err(Status::NotSupported) }
    }

    fn cuEventQuery(event: CUevent) {
        let event = Driver::get()?.events.get(Handle::of(event))?;
        event.context.check()?;
        event.query()
    }

    fn cuEventSynchronize(event: CUevent) {
        let event = Driver::get()?.events.get(Handle::of(event))?;
        event.context.check()?;
        event.synchronize()?;
        event.context.check()
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, begin: CUevent, end: CUevent) {
        elapsed(milliseconds, begin, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, begin: CUevent, end: CUevent) {
        elapsed(milliseconds, begin, end)
    }
}

fn record(event: CUevent, stream: CUstream) -> Result<(), Status> {
    let driver = Driver::get()?;
    let (event, stream) = (driver.events.get(Handle::of(event))?, driver.stream(Handle::of(stream))?);
    if event.context.handle != stream.context.handle {
        return Err(Status::InvalidHandle);
    }
    if let Some(capture) = stream.capture() {
        event.set(Recorded::Captured(capture.place(stream.handle)));
        return Ok(());
    }
    let marker = Arc::new(Marker::default());
    stream.push(Work::Record(marker.clone()))?;
    event.set(Recorded::Marker(marker));
    Ok(())
}

fn elapsed(milliseconds: Out<f32>, begin: CUevent, end: CUevent) -> Result<(), Status> {
    let driver = Driver::get()?;
    let (begin, end) = (driver.events.get(Handle::of(begin))?, driver.events.get(Handle::of(end))?);
    begin.context.check()?;
    milliseconds.set(begin.elapsed_ms(&end)?)
}
