//! Copies and fills.
//!
//! A copy with a stream runs in stream order. A copy without one runs in the default stream, and
//! the call waits if one end is on the host. As in the driver, pageable memory is read before the
//! call returns, and calls that write to it wait.

use super::arguments::Pointer;
use super::entry_points;
use crate::driver::Driver;
use crate::memory::Memory;
use crate::raw::{Pattern, Span};
use crate::status::Status;
use crate::table::Handle;
use crate::work::Work;
use atoll_cuda_api::types::*;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Device(u64),
    Host(Pointer),
    /// Either, by the address.
    Unified(u64),
}

/// When a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returns {
    AtOnce,
    WhenDone,
}

entry_points! { COPY:
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: Pointer, bytes: usize) {
        copy(CUstream::NULL, End::Host(from), End::Device(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoH_v2(to: Pointer, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Host(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Unified(from), End::Unified(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: Pointer, bytes: usize, stream: CUstream) {
        copy(stream, End::Host(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyDtoHAsync_v2(to: Pointer, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(stream, End::Device(from), End::Host(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(stream, End::Device(from), End::Device(to), bytes, Returns::AtOnce)
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        copy(stream, End::Unified(from), End::Unified(to), bytes, Returns::AtOnce)
    }

    fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) {
        fill(CUstream::NULL, at, Pattern::Byte(value), count)
    }

    fn cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) {
        fill(CUstream::NULL, at, Pattern::Half(value), count)
    }

    fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) {
        fill(CUstream::NULL, at, Pattern::Word(value), count)
    }

    fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(stream, at, Pattern::Byte(value), count)
    }

    fn cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(stream, at, Pattern::Half(value), count)
    }

    fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(stream, at, Pattern::Word(value), count)
    }
}

/// The memory of an end, and whether it is unknown to the driver.
fn resolve(memory: &Memory, end: End, bytes: u64) -> Result<(Span, bool), Status> {
    let known = |at: u64| memory.find(at).map(|_| memory.span(at, bytes)).transpose();
    let of_program = |pointer: Pointer| Ok((pointer.span(bytes)?, true));
    match end {
        End::Device(at) => Ok((memory.span(at, bytes)?, false)),
        End::Host(pointer) => known(pointer.address())?.map_or_else(|| of_program(pointer), |span| Ok((span, false))),
        End::Unified(at) => {
            let pointer = Pointer::to(at);
            known(at)?.map_or_else(|| of_program(pointer), |span| Ok((span, false)))
        }
    }
}

fn copy(stream: CUstream, from: End, to: End, bytes: usize, returns: Returns) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle::of(stream))?;
    stream.context.check()?;
    if bytes == 0 {
        return Ok(());
    }
    let (from, from_program) = resolve(&driver.memory, from, bytes as u64)?;
    let (to, to_program) = resolve(&driver.memory, to, bytes as u64)?;
    let is_captured = stream.capture().is_some();
    if returns == Returns::WhenDone {
        stream.context.refuse_while_capturing()?;
    }
    let is_read_now = from_program && returns == Returns::AtOnce && !is_captured;
    stream.push(if is_read_now { Work::Put { bytes: from.to_vec().into(), to } } else { Work::Copy { from, to } })?;
    if !is_captured && (returns == Returns::WhenDone || to_program) { stream.synchronize() } else { Ok(()) }
}

fn fill(stream: CUstream, at: CUdeviceptr, pattern: Pattern, count: usize) -> Result<(), Status> {
    let driver = Driver::get()?;
    let stream = driver.stream(Handle::of(stream))?;
    stream.context.check()?;
    let bytes = (count as u64)
        .checked_mul(pattern.bytes())
        .filter(|_| at.is_multiple_of(pattern.bytes()))
        .ok_or(Status::InvalidValue)?;
    if bytes == 0 {
        return Ok(());
    }
    stream.push(Work::Fill { span: driver.memory.span(at, bytes)?, pattern })
}
