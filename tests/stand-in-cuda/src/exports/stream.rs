//! Streams, and operations in them other than kernels and copies.

use super::arguments::{Out, Pointer};
use super::entry_points;
use crate::context::Context;
use crate::device::{PRIORITY_MIN, Part, Place};
use crate::driver::Driver;
use crate::event::Recorded;
use crate::graph::{Capture, Graph, Mode};
use crate::host_call::HostCall;
use crate::status::Status;
use crate::stream::Stream;
use crate::table::Handle;
use crate::work::{Number, Test, Work};
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use std::sync::{Arc, Weak};

entry_points! { STREAM:
    fn cuStreamCreate(stream: Out<CUstream>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        let stream = Driver::get()?.streams.remove(Handle::of(stream))?;
        // Its pending operations still run.
        stream.close();
        stream.context.check()
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        stream.context.check()?;
        stream.synchronize()
    }

    fn cuStreamQuery(stream: CUstream) {
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        stream.context.check()?;
        stream.query()
    }

    fn cuStreamGetPriority(stream: CUstream, priority: Out<c_int>) {
        priority.set(Driver::get()?.stream(Handle::of(stream))?.place.priority)
    }

    fn cuStreamGetFlags(stream: CUstream, flags: Out<c_uint>) {
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        flags.set(if stream.is_blocking { 0 } else { CU_STREAM_NON_BLOCKING })
    }

    fn cuStreamGetCtx(stream: CUstream, context: Out<CUcontext>) {
        context.set(Driver::get()?.stream(Handle::of(stream))?.context.handle.raw())
    }

    fn cuStreamGetId(stream: CUstream, id: Out<c_ulonglong>) {
        id.set(Driver::get()?.stream(Handle::of(stream))?.handle.0)
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) {
        let driver = Driver::get()?;
        let (stream, event) = (driver.stream(Handle::of(stream))?, driver.events.get(Handle::of(event))?);
        match (event.recorded(), stream.capture()) {
            (Recorded::Never, _) => stream.context.check(),
            (Recorded::Marker(marker), None) => stream.push(Work::After(marker)),
            // Work outside the capture cannot become part of a graph.
            (Recorded::Marker(_), Some(capture)) => {
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

    fn cuStreamWriteValue32(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        write(stream, at, Number::Word(value), flags)
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        write(stream, at, Number::Word(value), flags)
    }

    fn cuStreamWriteValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        write(stream, at, Number::Long(value), flags)
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: u32, flags: c_uint) {
        wait(stream, at, Number::Word(value), flags)
    }

    fn cuStreamWaitValue64_v2(stream: CUstream, at: CUdeviceptr, value: u64, flags: c_uint) {
        wait(stream, at, Number::Long(value), flags)
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: Pointer) {
        let function = function.ok_or(Status::InvalidValue)?;
        Driver::get()?.stream(Handle::of(stream))?.push(Work::Call(HostCall::new(function, data.raw())))
    }

    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) {
        let mode = match mode {
            CU_STREAM_CAPTURE_MODE_GLOBAL => Mode::Global,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => Mode::ThreadLocal,
            CU_STREAM_CAPTURE_MODE_RELAXED => Mode::Relaxed,
            _ => return Err(Status::InvalidValue),
        };
        if stream.bits() <= 1 {
            return Err(Status::CaptureUnsupported);
        }
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        stream.context.check()?;
        if stream.capture().is_some() {
            return Err(Status::IllegalState);
        }
        stream.set_capture(Some(Capture::new(stream.handle, mode)));
        Ok(())
    }

    fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) {
        graph.is_wanted()?;
        let driver = Driver::get()?;
        let stream = driver.stream(Handle::of(stream))?;
        let capture = stream.capture().ok_or(Status::IllegalState)?;
        if capture.origin != stream.handle {
            capture.invalidate();
            return Err(Status::CaptureUnmatched);
        }
        let is_part = |other: &Stream| other.capture().is_some_and(|theirs| Arc::ptr_eq(&theirs, &capture));
        stream.context.streams(is_part).iter().for_each(|part| part.set_capture(None));
        graph.set_if_wanted(CUgraph::NULL);
        let handle = Handle::fresh();
        driver.graphs.put(handle, Arc::new(Graph { context: stream.context.clone(), works: capture.finish()? }));
        graph.set(handle.raw())
    }

    fn cuStreamIsCapturing(stream: CUstream, status: Out<CUstreamCaptureStatus>) {
        status.set(capture_status(&*Driver::get()?.stream(Handle::of(stream))?))
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>,
        nodes: Out<*const CUgraphNode>, count: Out<usize>
    ) {
        if !graph.is_null() || !nodes.is_null() {
            return Err(Status::NotSupported);
        }
        let stream = Driver::get()?.stream(Handle::of(stream))?;
        id.set_if_wanted(stream.capture().map_or(0, |capture| capture.id));
        count.set_if_wanted(0);
        status.set(capture_status(&stream))
    }
}

fn create(stream: Out<CUstream>, flags: c_uint, priority: c_int) -> Result<(), Status> {
    start(&Driver::get()?.current()?, stream, flags, priority, None)
}

/// Creates a stream of a context, on a part of its device if there is one.
pub(super) fn start(
    context: &Arc<Context>,
    stream: Out<CUstream>,
    flags: c_uint,
    priority: c_int,
    part: Option<Weak<Part>>,
) -> Result<(), Status> {
    stream.is_wanted()?;
    let driver = Driver::get()?;
    if flags & !CU_STREAM_NON_BLOCKING != 0 {
        return Err(Status::InvalidValue);
    }
    let place = Place { priority: priority.clamp(PRIORITY_MIN, 0), part };
    let made = context.start_stream(place, flags & CU_STREAM_NON_BLOCKING == 0)?;
    driver.streams.put(made.handle, made.clone());
    stream.set(made.handle.raw())
}

fn capture_status(stream: &Stream) -> CUstreamCaptureStatus {
    match stream.capture() {
        None => CU_STREAM_CAPTURE_STATUS_NONE,
        Some(capture) if capture.is_invalid() => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        Some(_) => CU_STREAM_CAPTURE_STATUS_ACTIVE,
    }
}

fn write(stream: CUstream, at: CUdeviceptr, number: Number, flags: c_uint) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle::of(stream))?;
    if flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER != 0 || !at.is_multiple_of(number.bytes()) {
        return Err(Status::InvalidValue);
    }
    stream.push(Work::Store { span: driver.memory.span(at, number.bytes())?, number })
}

fn wait(stream: CUstream, at: CUdeviceptr, number: Number, flags: c_uint) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle::of(stream))?;
    let test = match flags & !CU_STREAM_WAIT_VALUE_FLUSH {
        CU_STREAM_WAIT_VALUE_GEQ => Test::AtLeast,
        CU_STREAM_WAIT_VALUE_EQ => Test::Equal,
        CU_STREAM_WAIT_VALUE_AND => Test::And,
        CU_STREAM_WAIT_VALUE_NOR => Test::Nor,
        _ => return Err(Status::InvalidValue),
    };
    if !at.is_multiple_of(number.bytes()) {
        return Err(Status::InvalidValue);
    }
    stream.push(Work::Await { span: driver.memory.span(at, number.bytes())?, number, test })
}
