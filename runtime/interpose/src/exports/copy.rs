//! Copies and fills.
//!
//! The program's memory is read before a call returns. A copy into it is complete when the call
//! returns. An asynchronous copy into pinned memory may be complete only after the next call that
//! waits. A synchronous call that uses managed memory returns when all work is done: the program may
//! touch that memory then.

use super::context::existing;
use super::entry_points;
use crate::arguments::{In, Place};
use crate::boxes::{BoxCopy, End};
use crate::handles::stream_number;
use crate::shim::Shim;
use crate::work::{Fill, Work};
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// When a copy or a fill returns to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returns {
    AtOnce,
    WhenDone,
    /// When done if it uses managed memory, which the program may touch then; otherwise at once.
    WhenDoneIfManaged,
}

impl Returns {
    /// When it returns, once it is known whether it uses managed memory.
    fn decided(self, is_managed: bool) -> Returns {
        match self {
            Returns::WhenDoneIfManaged if is_managed => Returns::WhenDone,
            Returns::WhenDoneIfManaged => Returns::AtOnce,
            decided => decided,
        }
    }
}

entry_points! { COPY:
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: Place, bytes: usize) {
        copy(CUstream::NULL, End::Host(from), End::Device(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoH_v2(to: Place, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Host(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Device(to), bytes, Returns::WhenDoneIfManaged)
    }

    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        unified(CUstream::NULL, from, to, bytes, Returns::WhenDone)
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: Place, bytes: usize, stream: CUstream) {
        copy(stream, End::Host(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyDtoHAsync_v2(to: Place, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(stream, End::Device(from), End::Host(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(stream, End::Device(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        unified(stream, from, to, bytes, Returns::AtOnce)
    }

    // Both contexts are of the session's only device.
    fn cuMemcpyPeer(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize) {
        check_contexts([to_context, from_context])?;
        copy(CUstream::NULL, End::Device(from), End::Device(to), bytes, Returns::WhenDoneIfManaged)
    }

    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
        stream: CUstream
    ) {
        check_contexts([to_context, from_context])?;
        copy(stream, End::Device(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D_v2>) {
        copy_box(CUstream::NULL, BoxCopy::of_rows(&copy.get(0)?)?, Returns::WhenDone)
    }

    fn cuMemcpy2DUnaligned_v2(copy: In<CUDA_MEMCPY2D_v2>) {
        copy_box(CUstream::NULL, BoxCopy::of_rows(&copy.get(0)?)?, Returns::WhenDone)
    }

    fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D_v2>, stream: CUstream) {
        copy_box(stream, BoxCopy::of_rows(&copy.get(0)?)?, Returns::AtOnce)
    }

    fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D_v2>) {
        copy_box(CUstream::NULL, BoxCopy::of_planes(&copy.get(0)?)?, Returns::WhenDone)
    }

    fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D_v2>, stream: CUstream) {
        copy_box(stream, BoxCopy::of_planes(&copy.get(0)?)?, Returns::AtOnce)
    }

    fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value.into(), 1), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value.into(), 2), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value, 4), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value.into(), 1), Returns::AtOnce)
    }

    fn cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value.into(), 2), Returns::AtOnce)
    }

    fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value, 4), Returns::AtOnce)
    }

    fn cuMemsetD2D8_v2(at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value.into(), 1), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD2D16_v2(at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value.into(), 2), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD2D32_v2(at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value, 4), Returns::WhenDoneIfManaged)
    }

    fn cuMemsetD2D8Async(
        at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value.into(), 1), Returns::AtOnce)
    }

    fn cuMemsetD2D16Async(
        at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value.into(), 2), Returns::AtOnce)
    }

    fn cuMemsetD2D32Async(
        at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value, 4), Returns::AtOnce)
    }
}

/// Returns an error if a context does not exist. Null is the current one.
fn check_contexts(contexts: [CUcontext; 2]) -> Result<(), Code> {
    let shim = Shim::get()?;
    contexts.into_iter().try_for_each(|context| existing(&shim, context).map(drop))
}

/// A copy whose direction is found from the addresses.
fn unified(stream: CUstream, from: u64, to: u64, bytes: usize, returns: Returns) -> Result<(), Code> {
    let (shim, _) = Shim::current()?;
    let (from, to) = (shim.end(from), shim.end(to));
    drop(shim);
    copy(stream, from, to, bytes, returns)
}

/// A copy of contiguous bytes. Managed memory that the program names as its own is copied on the
/// device.
fn copy(stream: CUstream, from: End, to: End, bytes: usize, returns: Returns) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let stream = stream_number(stream)?;
    let [from, to] = [from, to].map(|end| match end {
        End::Host(place) => shim.end_of_host(place.address()),
        End::Device(at) if shim.host.holds(at, bytes as u64) => shim.end(at),
        End::Device(at) => End::Device(at),
    });
    if shim.is_captured(stream)? {
        return shim.capture(stream, Work::Copy(BoxCopy::row(from, to, bytes as u64)));
    }
    let is_managed = [from, to].into_iter().any(|end| matches!(end, End::Device(at) if shim.managed.holds(at)));
    let copied = shim.copy_row(stream, from, to, bytes as u64);
    finish(&mut shim, copied, returns.decided(is_managed))
}

/// A copy of rows and planes.
fn copy_box(stream: CUstream, copy: BoxCopy, returns: Returns) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let stream = stream_number(stream)?;
    if shim.is_captured(stream)? {
        let copy = copy.resolved(&shim);
        return shim.capture(stream, Work::Copy(copy));
    }
    let copied = copy.perform(&mut shim, stream);
    finish(&mut shim, copied, returns)
}

/// Waits for a copy unless it may return without waiting. After an error the program may free its
/// memory, so no recorded copy may write to it later.
fn finish(shim: &mut Shim, copied: Result<bool, Code>, returns: Returns) -> Result<(), Code> {
    if copied == Ok(true) && returns == Returns::AtOnce {
        return Ok(());
    }
    let completed = copied.map(drop).and(shim.client.complete_copies());
    // A copy that has ended does not mean that all work has.
    if returns == Returns::WhenDone { shim.waited(completed) } else { completed }
}

fn fill(
    stream: CUstream,
    at: CUdeviceptr,
    (pitch, width, height): (usize, usize, usize),
    (value, size): (u32, u32),
    returns: Returns,
) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let stream = stream_number(stream)?;
    let fill = Fill { at, pitch: pitch as u64, width: width as u64, height: height as u64, value, size };
    if shim.is_captured(stream)? {
        return shim.capture(stream, Work::Fill(fill));
    }
    fill.perform(&mut shim, stream)?;
    let is_managed = shim.managed.holds(at);
    finish(&mut shim, Ok(true), returns.decided(is_managed))
}
