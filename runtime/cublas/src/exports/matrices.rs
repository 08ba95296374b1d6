//! Level 3 beside products: sums of matrices, and products of a matrix and itself.

use super::entry_points;
use crate::checks::{is_transposed, sizes};
use crate::gemm::{Gemm, Matrix, Part};
use crate::handle::{Call, with};
use crate::number::{Factors, Types};
use crate::vector::add;
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, HandleId, Number, Status};

/// A matrix of a call: its address and leading dimension.
type Operand = (u64, i64);

/// Declares the operations for one type: each name, and its name with 64-bit integers.
macro_rules! for_type {
    ($number:expr, $geam:ident $geam_64:ident $syrk:ident $syrk_64:ident) => {
        entry_points! {
            fn $geam(
                handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, alpha: At<u8>, a: u64, lda: Int,
                beta: At<u8>, b: u64, ldb: Int, c: u64, ldc: Int
            ) also $geam_64 {
                let operands = [(a, lda.into()), (b, ldb.into()), (c, ldc.into())];
                let (shape, operations) = ([m.into(), n.into()], [op_a, op_b]);
                let names = (stringify!($geam), $number);
                with(handle, |call| geam(call, names, operations, shape, (alpha, beta), operands))
            }

            fn $syrk(
                handle: HandleId, part: c_int, operation: c_int, n: Int, k: Int, alpha: At<u8>, a: u64, lda: Int,
                beta: At<u8>, c: u64, ldc: Int
            ) also $syrk_64 {
                let operands = [(a, lda.into()), (c, ldc.into())];
                let (shape, form) = ([n.into(), k.into()], (part, operation));
                let names = (stringify!($syrk), $number);
                with(handle, |call| syrk(call, names, form, shape, (alpha, beta), operands))
            }
        }
    };
}

for_type! { Number::F32, cublasSgeam cublasSgeam_64 cublasSsyrk_v2 cublasSsyrk_v2_64 }
for_type! { Number::F64, cublasDgeam cublasDgeam_64 cublasDsyrk_v2 cublasDsyrk_v2_64 }

fn matrix((at, ld): Operand, number: Number) -> Matrix {
    Matrix { at, row: number.bytes(), column: ld.wrapping_mul(number.bytes()), batch: 0 }
}

/// C = alpha * op(A) + beta * op(B).
fn geam(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    operations: [c_int; 2],
    [m, n]: [i64; 2],
    (alpha, beta): (At<u8>, At<u8>),
    [a, b, c]: [Operand; 3],
) -> Result<(), Status> {
    let [a_transposed, b_transposed] = [is_transposed(operations[0])?, is_transposed(operations[1])?];
    let [rows, columns] = sizes(name, [m, n])?;
    let is_short = |(_, ld): Operand, is_transposed: bool| ld < (if is_transposed { n } else { m }).max(1);
    if is_short(a, a_transposed) || is_short(b, b_transposed) || is_short(c, false) {
        return Err(Status::InvalidValue);
    }
    let factors = Factors::new(Types::all(number), call.state.settings.on_device, alpha, beta)?;
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    // In place only where each element is read and written by one thread.
    let overlaps = |of: Operand, is_transposed: bool| of.0 == c.0 && (is_transposed || of.1 != c.1);
    let lacks = |of: Operand, is_unread: bool| of.0 == 0 && !factors.on_device && !is_unread;
    let is_wrong = c.0 == 0
        || overlaps(a, a_transposed)
        || overlaps(b, b_transposed)
        || lacks(a, factors.is_alpha_zero())
        || lacks(b, factors.is_beta_zero());
    if is_wrong {
        return Err(Status::InvalidValue);
    }
    let [a, b] = [(a, a_transposed), (b, b_transposed)].map(|(of, is)| matrix(of, number).transposed_if(is));
    add(call, number, [rows, columns], factors, [a, b, matrix(c, number)])
}

/// C = alpha * op(A) * transposed(op(A)) + beta * C, on one side of the diagonal.
fn syrk(
    call: &mut Call<'_>,
    (name, number): (&'static str, Number),
    (part, operation): (c_int, c_int),
    [n, k]: [i64; 2],
    (alpha, beta): (At<u8>, At<u8>),
    [a, c]: [Operand; 2],
) -> Result<(), Status> {
    let is_transposed = is_transposed(operation)?;
    let part = match part {
        0 => Part::Lower,
        1 => Part::Upper,
        _ => return Err(Status::InvalidValue),
    };
    let [size, depth] = sizes(name, [n, k])?;
    if a.1 < (if is_transposed { k } else { n }).max(1) || c.1 < n.max(1) {
        return Err(Status::InvalidValue);
    }
    let types = Types::all(number);
    let factors = Factors::new(types, call.state.settings.on_device, alpha, beta)?;
    let reads_a = depth > 0 && !factors.is_alpha_zero();
    if size > 0 && (c.0 == 0 || (reads_a && a.0 == 0)) {
        return Err(Status::InvalidValue);
    }
    let left = matrix(a, number).transposed_if(is_transposed);
    let result = matrix(c, number);
    Gemm {
        types,
        m: size,
        n: size,
        k: depth,
        a: left,
        b: left.transposed(),
        c: result,
        d: result,
        factors,
        batch: 1,
        has_arrays: false,
        epilogue: None,
        part,
    }
    .launch(call)
}
