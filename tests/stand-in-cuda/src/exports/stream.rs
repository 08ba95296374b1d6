//! Streams, and what may stand in them beside kernels and copies.

use super::arguments::{HostCall, Out, Pointer};
use super::entry_points;
use crate::context::Context;
use crate::device::PRIORITY_MIN;
use crate::driver::Driver;
use crate::event::Recorded;
use crate::graph::{Capture, Graph, Mode};
use crate::status::Status;
use crate::stream::Stream;
use crate::table::Handle;
use crate::work::{Number, Test, Work};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which changes nothing here, and `CU_STREAM_WAIT_VALUE_FLUSH`, which nothing here needs.
const WRITE_NO_BARRIER: c_uint = 1;
const WAIT_FLUSH: c_uint = 1 << 30;

/// `CU_STREAM_CAPTURE_STATUS_*`.
const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;
const INVALIDATED: c_int = 2;

entry_points! { STREAM:
    fn cuStreamCreate(stream: Out<u64>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: u64) {
        let stream = Driver::get()?.streams.remove(Handle(stream))?;
        // What is in it is done all the same.
        stream.close();
        stream.context.check()
    }

    fn cuStreamSynchronize(stream: u64) {
        let stream = Driver::get()?.stream(Handle(stream))?;
        stream.context.check()?;
        stream.synchronize()
    }

    fn cuStreamQuery(stream: u64) {
        let stream = Driver::get()?.stream(Handle(stream))?;
        stream.context.check()?;
        stream.query()
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<c_int>) {
        priority.set(Driver::get()?.stream(Handle(stream))?.priority)
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<c_uint>) {
        let stream = Driver::get()?.stream(Handle(stream))?;
        flags.set(if stream.is_blocking { 0 } else { NON_BLOCKING })
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        context.set(Driver::get()?.stream(Handle(stream))?.context.handle.0)
    }

    fn cuStreamGetId(stream: u64, id: Out<u64>) {
        id.set(Driver::get()?.stream(Handle(stream))?.handle.0)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) {
        let driver = Driver::get()?;
        let (stream, event) = (driver.stream(Handle(stream))?, driver.events.get(Handle(event))?);
        match (event.recorded(), stream.capture()) {
            (Recorded::Never, _) => stream.context.check(),
            (Recorded::Moment(moment), None) => stream.push(Work::After(moment)),
            // Work from outside cannot become part of a graph.
            (Recorded::Moment(_), Some(capture)) => {
                capture.invalidate();
                Err(Status::CaptureUnsupported)
            }
            (Recorded::Captured(place), Some(capture)) if !Arc::ptr_eq(&place.capture, &capture) => {
                capture.invalidate();
                Err(Status::CaptureMerge)
            }
            (Recorded::Captured(place), capture) => {
                if capture.is_none() {
                    stream.set_capture(Some(place.capture.clone()));
                }
                place.capture.wait(stream.handle, &place);
                Ok(())
            }
        }
    }

    fn cuStreamWriteValue32_v2(stream: u64, at: u64, value: u32, flags: c_uint) {
        write(stream, at, Number::Word(value), flags)
    }

    fn cuStreamWriteValue64_v2(stream: u64, at: u64, value: u64, flags: c_uint) {
        write(stream, at, Number::Long(value), flags)
    }

    fn cuStreamWaitValue32_v2(stream: u64, at: u64, value: u32, flags: c_uint) {
        wait(stream, at, Number::Word(value), flags)
    }

    fn cuStreamWaitValue64_v2(stream: u64, at: u64, value: u64, flags: c_uint) {
        wait(stream, at, Number::Long(value), flags)
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<extern "C" fn(*mut c_void)>, data: Pointer) {
        let function = function.ok_or(Status::InvalidValue)?;
        Driver::get()?.stream(Handle(stream))?.push(Work::Call(HostCall::new(function, data)))
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) {
        let mode = match mode {
            0 => Mode::Global,
            1 => Mode::ThreadLocal,
            2 => Mode::Relaxed,
            _ => return Err(Status::InvalidValue),
        };
        if stream <= 1 {
            return Err(Status::CaptureUnsupported);
        }
        let stream = Driver::get()?.stream(Handle(stream))?;
        stream.context.check()?;
        if stream.capture().is_some() {
            return Err(Status::IllegalState);
        }
        stream.set_capture(Some(Capture::new(stream.handle, mode)));
        Ok(())
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) {
        graph.is_wanted()?;
        let driver = Driver::get()?;
        let stream = driver.stream(Handle(stream))?;
        let capture = stream.capture().ok_or(Status::IllegalState)?;
        if capture.origin != stream.handle {
            capture.invalidate();
            return Err(Status::CaptureUnmatched);
        }
        let is_part = |other: &Stream| other.capture().is_some_and(|theirs| Arc::ptr_eq(&theirs, &capture));
        stream.context.streams(is_part).iter().for_each(|part| part.set_capture(None));
        graph.set_if_wanted(0);
        let handle = Handle::fresh();
        driver.graphs.put(handle, Arc::new(Graph { context: stream.context.clone(), works: capture.finish()? }));
        graph.set(handle.0)
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<c_int>) {
        status.set(capture_status(&*Driver::get()?.stream(Handle(stream))?))
    }

    fn cuStreamGetCaptureInfo_v2(stream: u64, status: Out<c_int>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>) {
        if !graph.is_null() || !nodes.is_null() {
            return Err(Status::NotSupported);
        }
        let stream = Driver::get()?.stream(Handle(stream))?;
        id.set_if_wanted(stream.capture().map_or(0, |capture| capture.id));
        count.set_if_wanted(0);
        status.set(capture_status(&stream))
    }
}

fn create(stream: Out<u64>, flags: c_uint, priority: c_int) -> Result<(), Status> {
    start(&Driver::get()?.current()?, stream, flags, priority)
}

/// Makes a stream of a context.
pub(super) fn start(context: &Arc<Context>, stream: Out<u64>, flags: c_uint, priority: c_int) -> Result<(), Status> {
    stream.is_wanted()?;
    let driver = Driver::get()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Status::InvalidValue);
    }
    let made = context.start_stream(priority.clamp(PRIORITY_MIN, 0), flags & NON_BLOCKING == 0)?;
    driver.streams.put(made.handle, made.clone());
    stream.set(made.handle.0)
}

fn capture_status(stream: &Stream) -> c_int {
    match stream.capture() {
        None => NOT_CAPTURING,
        Some(capture) if capture.is_invalid() => INVALIDATED,
        Some(_) => CAPTURING,
    }
}

fn write(stream: u64, at: u64, number: Number, flags: c_uint) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle(stream))?;
    if flags & !WRITE_NO_BARRIER != 0 || !at.is_multiple_of(number.bytes()) {
        return Err(Status::InvalidValue);
    }
    stream.push(Work::Store { span: driver.memory.span(at, number.bytes())?, number })
}

fn wait(stream: u64, at: u64, number: Number, flags: c_uint) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle(stream))?;
    let test = match flags & !WAIT_FLUSH {
        0 => Test::AtLeast,
        1 => Test::Equal,
        2 => Test::And,
        3 => Test::Nor,
        _ => return Err(Status::InvalidValue),
    };
    if !at.is_multiple_of(number.bytes()) {
        return Err(Status::InvalidValue);
    }
    stream.push(Work::Await { span: driver.memory.span(at, number.bytes())?, number, test })
}
