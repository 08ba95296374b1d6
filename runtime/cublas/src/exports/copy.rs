//! Copies of vectors and matrices between the program's memory and the device's.

use super::entry_points;
use atoll_cuda_api::constants::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST};
use atoll_cuda_api::types::*;
use atoll_cuda_library::{Status, current_context, driver, pointer};

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Device,
    Host,
}

entry_points! {
    fn cublasSetVector(
        count: Int, bytes: Int, from: u64, from_step: Int, to: u64, to_step: Int
    ) also cublasSetVector_64 {
        let steps = [from_step.into(), to_step.into()];
        vector(To::Device, [count.into(), bytes.into()], (from, to), steps, None)
    }

    fn cublasGetVector(
        count: Int, bytes: Int, from: u64, from_step: Int, to: u64, to_step: Int
    ) also cublasGetVector_64 {
        let steps = [from_step.into(), to_step.into()];
        vector(To::Host, [count.into(), bytes.into()], (from, to), steps, None)
    }

    fn cublasSetVectorAsync(
        count: Int, bytes: Int, from: u64, from_step: Int, to: u64, to_step: Int, stream: CUstream
    ) also cublasSetVectorAsync_64 {
        let steps = [from_step.into(), to_step.into()];
        vector(To::Device, [count.into(), bytes.into()], (from, to), steps, Some(stream))
    }

    fn cublasGetVectorAsync(
        count: Int, bytes: Int, from: u64, from_step: Int, to: u64, to_step: Int, stream: CUstream
    ) also cublasGetVectorAsync_64 {
        let steps = [from_step.into(), to_step.into()];
        vector(To::Host, [count.into(), bytes.into()], (from, to), steps, Some(stream))
    }

    fn cublasSetMatrix(
        rows: Int, columns: Int, bytes: Int, from: u64, from_ld: Int, to: u64, to_ld: Int
    ) also cublasSetMatrix_64 {
        let lds = [from_ld.into(), to_ld.into()];
        matrix(To::Device, [rows.into(), columns.into(), bytes.into()], (from, to), lds, None)
    }

    fn cublasGetMatrix(
        rows: Int, columns: Int, bytes: Int, from: u64, from_ld: Int, to: u64, to_ld: Int
    ) also cublasGetMatrix_64 {
        let lds = [from_ld.into(), to_ld.into()];
        matrix(To::Host, [rows.into(), columns.into(), bytes.into()], (from, to), lds, None)
    }

    fn cublasSetMatrixAsync(
        rows: Int, columns: Int, bytes: Int, from: u64, from_ld: Int, to: u64, to_ld: Int, stream: CUstream
    ) also cublasSetMatrixAsync_64 {
        let lds = [from_ld.into(), to_ld.into()];
        matrix(To::Device, [rows.into(), columns.into(), bytes.into()], (from, to), lds, Some(stream))
    }

    fn cublasGetMatrixAsync(
        rows: Int, columns: Int, bytes: Int, from: u64, from_ld: Int, to: u64, to_ld: Int, stream: CUstream
    ) also cublasGetMatrixAsync_64 {
        let lds = [from_ld.into(), to_ld.into()];
        matrix(To::Host, [rows.into(), columns.into(), bytes.into()], (from, to), lds, Some(stream))
    }
}

/// Copies a vector whose elements are `steps` elements apart, as a matrix of one row.
fn vector(
    to: To,
    [count, bytes]: [i64; 2],
    places: (u64, u64),
    steps: [i64; 2],
    stream: Option<CUstream>,
) -> Result<(), Status> {
    if steps == [1, 1] {
        return matrix(to, [count, 1, bytes], places, [count.max(1); 2], stream);
    }
    matrix(to, [1, count, bytes], places, steps, stream)
}

/// Copies a matrix of elements of some bytes, with the leading dimensions of source and destination.
/// Waits for the copy unless there is a stream.
fn matrix(
    to: To,
    [rows, columns, bytes]: [i64; 3],
    (from, destination): (u64, u64),
    lds: [i64; 2],
    stream: Option<CUstream>,
) -> Result<(), Status> {
    if rows < 0 || columns < 0 || bytes <= 0 || lds.iter().any(|ld| *ld < rows.max(1)) {
        return Err(Status::InvalidValue);
    }
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let size = |count: i64| {
        let bytes = count.checked_mul(bytes).ok_or(Status::InvalidValue)?;
        usize::try_from(bytes).map_err(|_| Status::InvalidValue)
    };
    let (width, height) = (size(rows)?, columns as usize);
    let [src_pitch, dst_pitch] = [size(lds[0])?, size(lds[1])?];
    let driver = driver()?;
    current_context(driver)?;
    let failed = |status: Status| if status == Status::ExecutionFailed { Status::MappingError } else { status };
    if height == 1 || (src_pitch == width && dst_pitch == width) {
        let bytes = width.checked_mul(height).ok_or(Status::InvalidValue)?;
        let copied = match (to, stream) {
            (To::Device, None) => driver.cuMemcpyHtoD_v2(destination, pointer(from), bytes),
            (To::Device, Some(stream)) => driver.cuMemcpyHtoDAsync_v2(destination, pointer(from), bytes, stream),
            (To::Host, None) => driver.cuMemcpyDtoH_v2(pointer(destination), from, bytes),
            (To::Host, Some(stream)) => driver.cuMemcpyDtoHAsync_v2(pointer(destination), from, bytes, stream),
        };
        return copied.map_err(failed);
    }
    let to_device = to == To::Device;
    let (host, device) = (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE);
    let copy = CUDA_MEMCPY2D_v2 {
        src_x_in_bytes: 0,
        src_y: 0,
        src_memory_type: if to_device { host } else { device },
        src_host: pointer(if to_device { from } else { 0 }),
        src_device: if to_device { 0 } else { from },
        src_array: std::ptr::null_mut(),
        src_pitch,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_memory_type: if to_device { device } else { host },
        dst_host: pointer(if to_device { 0 } else { destination }),
        dst_device: if to_device { destination } else { 0 },
        dst_array: std::ptr::null_mut(),
        dst_pitch,
        width_in_bytes: width,
        height,
    };
    let copied = match stream {
        None => driver.cuMemcpy2DUnaligned_v2(&copy),
        Some(stream) => driver.cuMemcpy2DAsync_v2(&copy, stream),
    };
    copied.map_err(failed)
}
