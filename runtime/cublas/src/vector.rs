//! Operations on vectors, and sums of matrices.

use crate::checks::refused;
use crate::gemm::Matrix;
use crate::handle::Call;
use crate::kernels::{Code, VECTOR_THREADS};
use crate::number::{Factors, Types};
use atoll_cuda_library::{At, Number, Status};

/// Blocks of an operation that changes vectors: enough for any device; each thread then has several
/// elements.
const BLOCKS_MAX: u32 = 1024;

/// Blocks of a sum of matrices in y.
const COLUMN_BLOCKS_MAX: u32 = 65_535;

/// Flags of the kernels: the factor is an address; an index has 64 bits.
const ON_DEVICE: u64 = 1;
const WIDE_INDEX: u64 = 2;

/// A vector in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    /// The address as the program gives it: of the last element if the increment is negative.
    pub(crate) at: u64,
    /// Distance of its elements in elements.
    pub(crate) increment: i64,
}

impl Vector {
    /// The address of the first element, and the distance in bytes.
    pub(crate) fn first(self, count: i64, number: Number) -> (u64, i64) {
        let step = self.increment.wrapping_mul(number.bytes());
        let before = if self.increment < 0 { (1 - count).wrapping_mul(step) } else { 0 };
        (self.at.wrapping_add_signed(before), step)
    }
}

/// The number of elements, at least one, as a kernel gets it.
fn count_of(name: &'static str, count: i64) -> Result<u32, Status> {
    let count = i32::try_from(count).map_err(|_| refused(name, "vectors of more than 2147483647 elements"))?;
    Ok(count.unsigned_abs())
}

/// An operation that changes vectors: `axpy`, `scal`, `copy` or `swap`. Nothing happens if `count` is
/// not positive.
pub(crate) fn change(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    count: i64,
    alpha: Option<At<u8>>,
    (x, y): (Vector, Vector),
) -> Result<(), Status> {
    if count <= 0 {
        return Ok(());
    }
    let ([bits, _, address, _], on_device) = match alpha {
        Some(alpha) => {
            let factors = Factors::with_one(Types::all(number), call.state.settings.on_device, alpha)?;
            if name == "axpy" && factors.is_alpha_zero() {
                return Ok(());
            }
            (factors.parameters(), factors.on_device)
        }
        None => ([0; 4], false),
    };
    let elements = count_of(name, count)?;
    // With increment 0, elements are written several times: one after the other, as BLAS does.
    let is_written_once = y.increment != 0 && (name != "swap" || x.increment != 0);
    let (blocks, threads) =
        if is_written_once { (elements.div_ceil(VECTOR_THREADS).min(BLOCKS_MAX), VECTOR_THREADS) } else { (1, 1) };
    let ((x_at, x_step), (y_at, y_step)) = (x.first(count, number), y.first(count, number));
    let flags = if on_device { ON_DEVICE } else { 0 };
    let values = [elements.into(), x_at, x_step as u64, y_at, y_step as u64, bits, address, flags];
    call.launch((Code::Vector(number), name), ([blocks, 1, 1], threads), &values)
}

/// C = alpha * A + beta * B, of `rows` rows and `columns` columns, neither 0.
pub(crate) fn add(
    call: &mut Call<'_>,
    number: Number,
    [rows, columns]: [u32; 2],
    factors: Factors,
    [a, b, c]: [Matrix; 3],
) -> Result<(), Status> {
    let flags = if factors.on_device { ON_DEVICE } else { 0 };
    let mut values: Vec<u64> = vec![rows.into(), columns.into()];
    for matrix in [a, b, c] {
        values.extend([matrix.at, matrix.row as u64, matrix.column as u64]);
    }
    values.extend(factors.parameters());
    values.push(flags);
    let grid = [rows.div_ceil(VECTOR_THREADS), columns.min(COLUMN_BLOCKS_MAX), 1];
    call.launch((Code::Vector(number), "geam"), (grid, VECTOR_THREADS), &values)
}

/// An operation with a number as its result, of type `number`: `dot`, `asum` or `nrm2`.
pub(crate) fn reduce(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    count: i64,
    (x, y): (Vector, Vector),
    result: At<u8>,
) -> Result<(), Status> {
    let bytes = number.bytes() as usize;
    // The norms of BLAS are 0 if the increment is not positive.
    let is_empty = count <= 0 || (name != "dot" && x.increment <= 0);
    answer(call, bytes, is_empty, result, |call, at| {
        let ((x_at, x_step), (y_at, y_step)) = (x.first(count, number), y.first(count, number));
        let values = [count_of(name, count)?.into(), x_at, x_step as u64, y_at, y_step as u64, at];
        call.launch((Code::Vector(number), name), ([1, 1, 1], VECTOR_THREADS), &values)
    })
}

/// An operation with a position as its result, from 1; 0 if there is none: `iamax` or `iamin`. The
/// result has `bytes` bytes, 4 or 8.
pub(crate) fn position(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    count: i64,
    x: Vector,
    (result, bytes): (At<u8>, usize),
) -> Result<(), Status> {
    let is_empty = count <= 0 || x.increment <= 0;
    answer(call, bytes, is_empty, result, |call, at| {
        let (x_at, x_step) = x.first(count, number);
        let flags = if bytes == 8 { WIDE_INDEX } else { 0 };
        let values = [count_of(name, count)?.into(), x_at, x_step as u64, at, flags];
        call.launch((Code::Vector(number), name), ([1, 1, 1], VECTOR_THREADS), &values)
    })
}

/// Gives a result of at most 16 bytes to the program: a kernel writes it to the address that `launch`
/// gets. In host pointer mode the call waits and copies it; an empty result is 0.
fn answer(
    call: &mut Call<'_>,
    bytes: usize,
    is_empty: bool,
    result: At<u8>,
    launch: impl FnOnce(&mut Call<'_>, u64) -> Result<(), Status>,
) -> Result<(), Status> {
    result.is_wanted()?;
    let stream = call.state.stream;
    match (call.state.settings.on_device, is_empty) {
        (true, true) => call.driver.cuMemsetD8Async(result.address(), 0, bytes, stream),
        (true, false) => launch(call, result.address()),
        (false, true) => result.write_from(&[0; 8][..bytes]),
        (false, false) => {
            let scratch = call.scratch()?;
            launch(call, scratch)?;
            call.driver.cuMemcpyDtoHAsync_v2(result.raw(), scratch, bytes, stream)?;
            call.driver.cuStreamSynchronize(stream)
        }
    }
}
