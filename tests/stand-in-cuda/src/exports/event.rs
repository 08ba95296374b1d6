//! Events.

use super::arguments::Out;
use super::entry_points;
use crate::driver::Driver;
use crate::event::{Event, Moment, Recorded};
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use std::ffi::c_uint;
use std::sync::Arc;

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`; `CU_EVENT_INTERPROCESS` is not done.
const BLOCKING: c_uint = 1;
const NO_TIMES: c_uint = 2;

entry_points! { EVENT:
    fn cuEventCreate(event: Out<u64>, flags: c_uint) {
        event.is_wanted()?;
        let driver = Driver::get()?;
        let context = driver.current()?;
        if flags & !(BLOCKING | NO_TIMES) != 0 {
            return Err(if flags == 6 { Status::NotSupported } else { Status::InvalidValue });
        }
        let handle = Handle::fresh();
        driver.events.put(handle, Arc::new(Event::new(context, flags & NO_TIMES == 0)));
        event.set(handle.0)
    }

    fn cuEventDestroy_v2(event: u64) {
        Driver::get()?.events.remove(Handle(event))?.context.check()
    }

    fn cuEventRecord(event: u64, stream: u64) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) {
        if flags == 0 { record(event, stream) } else { Err(Status::NotSupported) }
    }

    fn cuEventQuery(event: u64) {
        let event = Driver::get()?.events.get(Handle(event))?;
        event.context.check()?;
        event.query()
    }

    fn cuEventSynchronize(event: u64) {
        let event = Driver::get()?.events.get(Handle(event))?;
        event.context.check()?;
        event.synchronize()?;
        event.context.check()
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, begin: u64, end: u64) {
        elapsed(milliseconds, begin, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, begin: u64, end: u64) {
        elapsed(milliseconds, begin, end)
    }
}

fn record(event: u64, stream: u64) -> Result<(), Status> {
    let driver = Driver::get()?;
    let (event, stream) = (driver.events.get(Handle(event))?, driver.stream(Handle(stream))?);
    if event.context.handle != stream.context.handle {
        return Err(Status::InvalidHandle);
    }
    if let Some(capture) = stream.capture() {
        event.set(Recorded::Captured(capture.place(stream.handle)));
        return Ok(());
    }
    let moment = Arc::new(Moment::default());
    stream.push(Work::Record(moment.clone()))?;
    event.set(Recorded::Moment(moment));
    Ok(())
}

fn elapsed(milliseconds: Out<f32>, begin: u64, end: u64) -> Result<(), Status> {
    let driver = Driver::get()?;
    let (begin, end) = (driver.events.get(Handle(begin))?, driver.events.get(Handle(end))?);
    begin.context.check()?;
    milliseconds.set(begin.elapsed_ms(&end)?)
}
