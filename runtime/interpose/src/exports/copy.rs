//! Copies and fills.
//!
//! The program's memory is read before a call returns. A copy into it is complete when the call
//! returns. An asynchronous copy into pinned memory may be complete only after the next call that
//! waits.

use super::entry_points;
use crate::arguments::{In, Place};
use crate::handles::stream_number;
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// The source or the destination of a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Device(u64),
    Host(Place),
}

impl End {
    /// The same end, `bytes` bytes further.
    fn behind(self, bytes: u64) -> Result<End, Code> {
        Ok(match self {
            End::Device(at) => End::Device(at.checked_add(bytes).ok_or(Code::INVALID_VALUE)?),
            End::Host(place) => End::Host(place.behind(bytes)?),
        })
    }
}

/// When a copy returns to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returns {
    AtOnce,
    WhenDone,
}

entry_points! { COPY:
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: Place, bytes: usize) {
        copy(CUstream::NULL, End::Host(from), End::Device(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoH_v2(to: Place, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Host(to), bytes, Returns::WhenDone)
    }

    fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        copy(CUstream::NULL, End::Device(from), End::Device(to), bytes, Returns::AtOnce)
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

    fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D_v2>) {
        copy_rows(CUstream::NULL, copy.get(0)?, Returns::WhenDone)
    }

    fn cuMemcpy2DUnaligned_v2(copy: In<CUDA_MEMCPY2D_v2>) {
        copy_rows(CUstream::NULL, copy.get(0)?, Returns::WhenDone)
    }

    fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D_v2>, stream: CUstream) {
        copy_rows(stream, copy.get(0)?, Returns::AtOnce)
    }

    fn cuMemsetD8_v2(at: CUdeviceptr, value: c_uchar, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value.into(), 1))
    }

    fn cuMemsetD16_v2(at: CUdeviceptr, value: c_ushort, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value.into(), 2))
    }

    fn cuMemsetD32_v2(at: CUdeviceptr, value: c_uint, count: usize) {
        fill(CUstream::NULL, at, (0, count, 1), (value, 4))
    }

    fn cuMemsetD8Async(at: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value.into(), 1))
    }

    fn cuMemsetD16Async(at: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value.into(), 2))
    }

    fn cuMemsetD32Async(at: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) {
        fill(stream, at, (0, count, 1), (value, 4))
    }

    fn cuMemsetD2D8_v2(at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value.into(), 1))
    }

    fn cuMemsetD2D16_v2(at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value.into(), 2))
    }

    fn cuMemsetD2D32_v2(at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        fill(CUstream::NULL, at, (pitch, width, height), (value, 4))
    }

    fn cuMemsetD2D8Async(
        at: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value.into(), 1))
    }

    fn cuMemsetD2D16Async(
        at: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value.into(), 2))
    }

    fn cuMemsetD2D32Async(
        at: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream
    ) {
        fill(stream, at, (pitch, width, height), (value, 4))
    }
}

/// A copy whose direction is found from the addresses.
fn unified(stream: CUstream, from: u64, to: u64, bytes: usize, returns: Returns) -> Result<(), Code> {
    let (shim, _) = Shim::current()?;
    let (from, to) = (end(&shim, from), end(&shim, to));
    drop(shim);
    copy(stream, from, to, bytes, returns)
}

fn end(shim: &Shim, at: u64) -> End {
    if shim.client.find(at).is_some() { End::Device(at) } else { End::Host(Place::at(at)) }
}

fn copy(stream: CUstream, from: End, to: End, bytes: usize, returns: Returns) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let stream = stream_number(stream)?;
    let is_left = copy_row(&mut shim, stream, from, to, bytes as u64)?;
    if is_left && returns == Returns::AtOnce { Ok(()) } else { shim.client.complete_copies() }
}

/// Records a copy. Returns whether an asynchronous copy may return without waiting.
fn copy_row(shim: &mut Shim, stream: u32, from: End, to: End, bytes: u64) -> Result<bool, Code> {
    match (from, to) {
        (End::Device(from), End::Device(to)) => shim.client.copy_within(stream, to, from, bytes).map(|()| true),
        (End::Host(from), End::Device(to)) => {
            // An earlier copy to the host may not have written the contents yet.
            if shim.client.is_awaited(from.address(), bytes) {
                shim.client.complete_copies()?;
            }
            shim.client.copy_in(stream, to, from.bytes(bytes)?).map(|()| true)
        }
        (End::Device(from), End::Host(to)) => {
            shim.client.copy_out(stream, to.copy(bytes)?, from)?;
            Ok(shim.host.holds(to.address(), bytes))
        }
        (End::Host(from), End::Host(to)) => {
            shim.client.synchronize_stream(stream)?;
            from.move_to(to, bytes).map(|()| true)
        }
    }
}

fn copy_rows(stream: CUstream, copy: CUDA_MEMCPY2D_v2, returns: Returns) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let stream = stream_number(stream)?;
    let of = |shim: &Shim, kind: c_uint, host: u64, device: u64| match kind {
        CU_MEMORYTYPE_HOST => Ok(End::Host(Place::at(host))),
        CU_MEMORYTYPE_DEVICE => Ok(End::Device(device)),
        CU_MEMORYTYPE_UNIFIED => Ok(end(shim, device)),
        _ => Err(Code::NOT_SUPPORTED),
    };
    let from = of(&shim, copy.src_memory_type, copy.src_host as u64, copy.src_device)?;
    let to = of(&shim, copy.dst_memory_type, copy.dst_host as u64, copy.dst_device)?;
    let [width, height] = [copy.width_in_bytes as u64, copy.height as u64];
    // A pitch of 0 means contiguous rows.
    let pitch = |pitch: usize| if pitch == 0 { width } else { pitch as u64 };
    let (from_pitch, to_pitch) = (pitch(copy.src_pitch), pitch(copy.dst_pitch));
    if width == 0 || height == 0 {
        return Ok(());
    }
    if from_pitch < width || to_pitch < width {
        return Err(Code::INVALID_VALUE);
    }
    let offset = |x: usize, y: u64, pitch: u64| {
        y.checked_mul(pitch).and_then(|before| before.checked_add(x as u64)).ok_or(Code::INVALID_VALUE)
    };
    let mut rows = (0..height).map(|row| {
        let from = from.behind(offset(copy.src_x_in_bytes, copy.src_y as u64 + row, from_pitch)?)?;
        let to = to.behind(offset(copy.dst_x_in_bytes, copy.dst_y as u64 + row, to_pitch)?)?;
        copy_row(&mut shim, stream, from, to, width)
    });
    let copied = rows.try_fold(true, |is_left, row| Ok(is_left & row?));
    drop(rows);
    // After an error the program may free its memory, so no recorded copy may write to it later.
    if copied == Ok(true) && returns == Returns::AtOnce {
        return Ok(());
    }
    let completed = shim.client.complete_copies();
    copied.and(completed)
}

fn fill(
    stream: CUstream,
    at: CUdeviceptr,
    (pitch, width, height): (usize, usize, usize),
    element: (u32, u32),
) -> Result<(), Code> {
    let (mut shim, _) = Shim::current()?;
    let rows = (pitch as u64, width as u64, height as u64);
    shim.client.fill(stream_number(stream)?, at, rows, element)
}
