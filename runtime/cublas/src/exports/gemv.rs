//! Level 2: products of a matrix and a vector, which are products of matrices with one column, and
//! products of two vectors.

use super::entry_points;
use super::gemm::ADDRESS_BYTES;
use crate::checks::{is_transposed, refused, sizes};
use crate::gemm::{Gemm, Matrix, Part};
use crate::handle::{Call, with};
use crate::number::{Factors, Types};
use crate::vector::Vector;
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, HandleId, Number, Status};

/// A matrix or vector of a call, and the elements from one of the batch to the next.
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    /// Leading dimension or increment.
    step: i64,
    stride: i64,
}

/// How the matrices of a batch are given.
#[derive(Clone, Copy)]
enum Batch {
    Strided(i64),
    Arrays(i64),
}

/// Declares the operations for one type: each name, and its name with 64-bit integers.
macro_rules! level_two {
    (
        $number:expr, $gemv:ident $gemv_64:ident $batched:ident $batched_64:ident
        $strided:ident $strided_64:ident $ger:ident $ger_64:ident
    ) => {
        entry_points! {
            fn $gemv(
                handle: HandleId, operation: c_int, m: Int, n: Int, alpha: At<u8>, a: u64, lda: Int, x: u64, incx: Int,
                beta: At<u8>, y: u64, incy: Int
            ) also $gemv_64 {
                let operands = [(a, lda.into(), 0), (x, incx.into(), 0), (y, incy.into(), 0)].map(operand);
                let (sizes, factors) = ([m.into(), n.into()], (alpha, beta));
                let names = (stringify!($gemv), $number);
                with(handle, |call| gemv(call, names, operation, sizes, factors, operands, Batch::Strided(1)))
            }

            fn $batched(
                handle: HandleId, operation: c_int, m: Int, n: Int, alpha: At<u8>, a: u64, lda: Int, x: u64, incx: Int,
                beta: At<u8>, y: u64, incy: Int, batch: Int
            ) also $batched_64 {
                let operands = [(a, lda.into(), 0), (x, incx.into(), 0), (y, incy.into(), 0)].map(operand);
                let (sizes, factors) = ([m.into(), n.into()], (alpha, beta));
                let (names, batch) = ((stringify!($batched), $number), Batch::Arrays(batch.into()));
                with(handle, |call| gemv(call, names, operation, sizes, factors, operands, batch))
            }

            fn $strided(
                handle: HandleId, operation: c_int, m: Int, n: Int, alpha: At<u8>, a: u64, lda: Int, stride_a: i64,
                x: u64, incx: Int, stride_x: i64, beta: At<u8>, y: u64, incy: Int, stride_y: i64, batch: Int
            ) also $strided_64 {
                let operands =
                    [(a, lda.into(), stride_a), (x, incx.into(), stride_x), (y, incy.into(), stride_y)].map(operand);
                let (sizes, factors) = ([m.into(), n.into()], (alpha, beta));
                let (names, batch) = ((stringify!($strided), $number), Batch::Strided(batch.into()));
                with(handle, |call| gemv(call, names, operation, sizes, factors, operands, batch))
            }

            fn $ger(
                handle: HandleId, m: Int, n: Int, alpha: At<u8>, x: u64, incx: Int, y: u64, incy: Int, a: u64, lda: Int
            ) also $ger_64 {
                let operands = [(x, incx.into(), 0), (y, incy.into(), 0), (a, lda.into(), 0)].map(operand);
                let names = (stringify!($ger), $number);
                with(handle, |call| ger(call, names, [m.into(), n.into()], alpha, operands))
            }
        }
    };
}

level_two! {
    Number::F32, cublasSgemv_v2 cublasSgemv_v2_64 cublasSgemvBatched cublasSgemvBatched_64
    cublasSgemvStridedBatched cublasSgemvStridedBatched_64 cublasSger_v2 cublasSger_v2_64
}

level_two! {
    Number::F64, cublasDgemv_v2 cublasDgemv_v2_64 cublasDgemvBatched cublasDgemvBatched_64
    cublasDgemvStridedBatched cublasDgemvStridedBatched_64 cublasDger_v2 cublasDger_v2_64
}

fn operand((at, step, stride): (u64, i64, i64)) -> Operand {
    Operand { at, step, stride }
}

/// y = alpha * op(A) * x + beta * y.
fn gemv(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    operation: c_int,
    [m, n]: [i64; 2],
    (alpha, beta): (At<u8>, At<u8>),
    [a, x, y]: [Operand; 3],
    batch: Batch,
) -> Result<(), Status> {
    let is_transposed = is_transposed(operation)?;
    let (count, has_arrays) = match batch {
        Batch::Strided(count) => (count, false),
        Batch::Arrays(count) => (count, true),
    };
    let [rows, columns, count] = sizes(name, [m, n, count])?;
    if a.step < m.max(1) || x.step == 0 || y.step == 0 {
        return Err(Status::InvalidValue);
    }
    let factors = Factors::new(Types::all(number), call.state.settings.on_device, alpha, beta)?;
    if rows == 0 || columns == 0 || count == 0 {
        return Ok(());
    }
    // An array has the addresses that the program gives, from which the first elements are not
    // computed here.
    if has_arrays && (x.step < 0 || y.step < 0) {
        return Err(refused(name, "negative increments"));
    }
    let bytes = number.bytes();
    let batch_step = |operand: Operand| if has_arrays { ADDRESS_BYTES } else { operand.stride.wrapping_mul(bytes) };
    let (lengths, gemm_rows, depth) = if is_transposed { ([m, n], columns, rows) } else { ([n, m], rows, columns) };
    let a_matrix = Matrix { at: a.at, row: bytes, column: a.step.wrapping_mul(bytes), batch: batch_step(a) };
    let of_vector = |operand: Operand, length: i64| {
        let (at, row) = Vector { at: operand.at, increment: operand.step }.first(length, number);
        Matrix { at, row, column: 0, batch: batch_step(operand) }
    };
    let result = of_vector(y, lengths[1]);
    Gemm {
        types: Types::all(number),
        m: gemm_rows,
        n: 1,
        k: depth,
        a: a_matrix.transposed_if(is_transposed),
        b: of_vector(x, lengths[0]),
        c: result,
        d: result,
        factors,
        batch: count,
        has_arrays,
        epilogue: None,
        part: Part::All,
    }
    .launch(call)
}

/// A = alpha * x * transposed(y) + A.
fn ger(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    [m, n]: [i64; 2],
    alpha: At<u8>,
    [x, y, a]: [Operand; 3],
) -> Result<(), Status> {
    let [rows, columns] = sizes(name, [m, n])?;
    if a.step < m.max(1) || x.step == 0 || y.step == 0 {
        return Err(Status::InvalidValue);
    }
    let types = Types::all(number);
    let factors = Factors::with_one(types, call.state.settings.on_device, alpha)?;
    let bytes = number.bytes();
    let (x_at, x_step) = Vector { at: x.at, increment: x.step }.first(m, number);
    let (y_at, y_step) = Vector { at: y.at, increment: y.step }.first(n, number);
    let result = Matrix { at: a.at, row: bytes, column: a.step.wrapping_mul(bytes), batch: 0 };
    Gemm {
        types,
        m: rows,
        n: columns,
        k: 1,
        a: Matrix { at: x_at, row: x_step, column: 0, batch: 0 },
        b: Matrix { at: y_at, row: 0, column: y_step, batch: 0 },
        c: result,
        d: result,
        factors,
        batch: 1,
        has_arrays: false,
        epilogue: None,
        part: Part::All,
    }
    .launch(call)
}
