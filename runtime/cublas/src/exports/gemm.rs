//! Level 3: products of matrices.

use super::entry_points;
use crate::checks::{is_transposed, refused, sizes};
use crate::gemm::{Gemm, Matrix, Part};
use crate::handle::with;
use crate::number::{Factors, Types};
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, HandleId, Number, Status};

/// The bytes of an address in an array of addresses.
pub(super) const ADDRESS_BYTES: i64 = 8;

/// A matrix of a call.
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    /// The leading dimension.
    ld: i64,
    /// Elements from one matrix of the batch to the next.
    stride: i64,
}

/// A product as a call describes it.
struct Product {
    name: &'static str,
    types: Types,
    operations: [c_int; 2],
    /// m, n and k.
    sizes: [i64; 3],
    factors: (At<u8>, At<u8>),
    /// A, B and C.
    operands: [Operand; 3],
    batch: i64,
    /// Whether the operands are arrays of addresses.
    has_arrays: bool,
}

/// Declares the products for one type: each name, and its name with 64-bit integers.
macro_rules! level_three {
    (
        $types:expr, $gemm:ident $gemm_64:ident $batched:ident $batched_64:ident $strided:ident $strided_64:ident
    ) => {
        entry_points! {
            fn $gemm(
                handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, lda: Int,
                b: u64, ldb: Int, beta: At<u8>, c: u64, ldc: Int
            ) also $gemm_64 {
                product(handle, Product {
                    name: stringify!($gemm),
                    types: $types,
                    operations: [op_a, op_b],
                    sizes: [m.into(), n.into(), k.into()],
                    factors: (alpha, beta),
                    operands: [(a, lda.into(), 0), (b, ldb.into(), 0), (c, ldc.into(), 0)].map(operand),
                    batch: 1,
                    has_arrays: false,
                })
            }

            fn $batched(
                handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, lda: Int,
                b: u64, ldb: Int, beta: At<u8>, c: u64, ldc: Int, batch: Int
            ) also $batched_64 {
                product(handle, Product {
                    name: stringify!($batched),
                    types: $types,
                    operations: [op_a, op_b],
                    sizes: [m.into(), n.into(), k.into()],
                    factors: (alpha, beta),
                    operands: [(a, lda.into(), 0), (b, ldb.into(), 0), (c, ldc.into(), 0)].map(operand),
                    batch: batch.into(),
                    has_arrays: true,
                })
            }

            fn $strided(
                handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, lda: Int,
                stride_a: i64, b: u64, ldb: Int, stride_b: i64, beta: At<u8>, c: u64, ldc: Int, stride_c: i64,
                batch: Int
            ) also $strided_64 {
                let operands =
                    [(a, lda.into(), stride_a), (b, ldb.into(), stride_b), (c, ldc.into(), stride_c)].map(operand);
                product(handle, Product {
                    name: stringify!($strided),
                    types: $types,
                    operations: [op_a, op_b],
                    sizes: [m.into(), n.into(), k.into()],
                    factors: (alpha, beta),
                    operands,
                    batch: batch.into(),
                    has_arrays: false,
                })
            }
        }
    };
}

level_three! {
    Types::all(Number::F32), cublasSgemm_v2 cublasSgemm_v2_64 cublasSgemmBatched cublasSgemmBatched_64
    cublasSgemmStridedBatched cublasSgemmStridedBatched_64
}

level_three! {
    Types::all(Number::F64), cublasDgemm_v2 cublasDgemm_v2_64 cublasDgemmBatched cublasDgemmBatched_64
    cublasDgemmStridedBatched cublasDgemmStridedBatched_64
}

level_three! {
    Types::HALF, cublasHgemm cublasHgemm_64 cublasHgemmBatched cublasHgemmBatched_64
    cublasHgemmStridedBatched cublasHgemmStridedBatched_64
}

/// `CUBLAS_COMPUTE_32F`.
const COMPUTE_F32: c_int = 68;

entry_points! {
    fn cublasGemmEx(
        handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, type_a: c_int,
        lda: Int, b: u64, type_b: c_int, ldb: Int, beta: At<u8>, c: u64, type_c: c_int, ldc: Int, compute: c_int,
        _algorithm: c_int
    ) also cublasGemmEx_64 {
        product(handle, Product {
            name: "cublasGemmEx",
            types: types("cublasGemmEx", compute, [type_a, type_b, type_c])?,
            operations: [op_a, op_b],
            sizes: [m.into(), n.into(), k.into()],
            factors: (alpha, beta),
            operands: [(a, lda.into(), 0), (b, ldb.into(), 0), (c, ldc.into(), 0)].map(operand),
            batch: 1,
            has_arrays: false,
        })
    }

    fn cublasSgemmEx(
        handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, type_a: c_int,
        lda: Int, b: u64, type_b: c_int, ldb: Int, beta: At<u8>, c: u64, type_c: c_int, ldc: Int
    ) also cublasSgemmEx_64 {
        product(handle, Product {
            name: "cublasSgemmEx",
            types: types("cublasSgemmEx", COMPUTE_F32, [type_a, type_b, type_c])?,
            operations: [op_a, op_b],
            sizes: [m.into(), n.into(), k.into()],
            factors: (alpha, beta),
            operands: [(a, lda.into(), 0), (b, ldb.into(), 0), (c, ldc.into(), 0)].map(operand),
            batch: 1,
            has_arrays: false,
        })
    }

    fn cublasGemmBatchedEx(
        handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, type_a: c_int,
        lda: Int, b: u64, type_b: c_int, ldb: Int, beta: At<u8>, c: u64, type_c: c_int, ldc: Int, batch: Int,
        compute: c_int, _algorithm: c_int
    ) also cublasGemmBatchedEx_64 {
        product(handle, Product {
            name: "cublasGemmBatchedEx",
            types: types("cublasGemmBatchedEx", compute, [type_a, type_b, type_c])?,
            operations: [op_a, op_b],
            sizes: [m.into(), n.into(), k.into()],
            factors: (alpha, beta),
            operands: [(a, lda.into(), 0), (b, ldb.into(), 0), (c, ldc.into(), 0)].map(operand),
            batch: batch.into(),
            has_arrays: true,
        })
    }

    fn cublasGemmStridedBatchedEx(
        handle: HandleId, op_a: c_int, op_b: c_int, m: Int, n: Int, k: Int, alpha: At<u8>, a: u64, type_a: c_int,
        lda: Int, stride_a: i64, b: u64, type_b: c_int, ldb: Int, stride_b: i64, beta: At<u8>, c: u64, type_c: c_int,
        ldc: Int, stride_c: i64, batch: Int, compute: c_int, _algorithm: c_int
    ) also cublasGemmStridedBatchedEx_64 {
        let operands =
            [(a, lda.into(), stride_a), (b, ldb.into(), stride_b), (c, ldc.into(), stride_c)].map(operand);
        product(handle, Product {
            name: "cublasGemmStridedBatchedEx",
            types: types("cublasGemmStridedBatchedEx", compute, [type_a, type_b, type_c])?,
            operations: [op_a, op_b],
            sizes: [m.into(), n.into(), k.into()],
            factors: (alpha, beta),
            operands,
            batch: batch.into(),
            has_arrays: false,
        })
    }
}

fn operand((at, ld, stride): (u64, i64, i64)) -> Operand {
    Operand { at, ld, stride }
}

/// The types for a type of computation and the types of A, B and C.
fn types(name: &'static str, compute: c_int, [a, b, c]: [c_int; 3]) -> Result<Types, Status> {
    Types::of(compute, [a, b, c])
        .ok_or_else(|| refused(name, &format!("types {a}, {b} and {c} with computation {compute}")))
}

/// C = alpha * op(A) * op(B) + beta * C.
fn product(handle: HandleId, product: Product) -> Result<(), Status> {
    let Product { name, types, operations, sizes: given, factors, operands: [a, b, c], batch, has_arrays } = product;
    with(handle, |call| {
        let [a_transposed, b_transposed] = [is_transposed(operations[0])?, is_transposed(operations[1])?];
        let [m, n, k] = given;
        let [rows, columns, depth, count] = sizes(name, [m, n, k, batch])?;
        let least = |is_transposed: bool, rows: i64, columns: i64| (if is_transposed { columns } else { rows }).max(1);
        if a.ld < least(a_transposed, m, k) || b.ld < least(b_transposed, k, n) || c.ld < m.max(1) {
            return Err(Status::InvalidValue);
        }
        let factors = Factors::new(types, call.state.settings.on_device, factors.0, factors.1)?;
        let reads_inputs = depth > 0 && !factors.is_alpha_zero();
        let is_empty = rows == 0 || columns == 0 || count == 0;
        if !is_empty && (c.at == 0 || (reads_inputs && (a.at == 0 || b.at == 0))) {
            return Err(Status::InvalidValue);
        }
        let matrix = |operand: Operand, number: Number| {
            let bytes = number.bytes();
            let batch = if has_arrays { ADDRESS_BYTES } else { operand.stride.wrapping_mul(bytes) };
            Matrix { at: operand.at, row: bytes, column: operand.ld.wrapping_mul(bytes), batch }
        };
        let result = matrix(c, types.output);
        Gemm {
            types,
            m: rows,
            n: columns,
            k: depth,
            a: matrix(a, types.input).transposed_if(a_transposed),
            b: matrix(b, types.input).transposed_if(b_transposed),
            c: result,
            d: result,
            factors,
            batch: count,
            has_arrays,
            epilogue: None,
            part: Part::All,
        }
        .launch(call)
    })
}
