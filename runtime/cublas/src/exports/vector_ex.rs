//! Level 1 with the types as arguments: f32 or f64 throughout.

use super::entry_points;
use crate::checks::refused;
use crate::handle::with;
use crate::number::number_of;
use crate::vector::{Vector, change, position, reduce};
use atoll_cuda_api::types::c_int;
use atoll_cuda_library::{At, HandleId, Number, Status};

entry_points! {
    fn cublasAxpyEx(
        handle: HandleId, count: Int, alpha: At<u8>, alpha_type: c_int, x: u64, x_type: c_int, incx: Int, y: u64,
        y_type: c_int, incy: Int, execution: c_int
    ) also cublasAxpyEx_64 {
        let number = one_type("cublasAxpyEx", &[alpha_type, x_type, y_type, execution])?;
        let vectors = (Vector { at: x, increment: incx.into() }, Vector { at: y, increment: incy.into() });
        with(handle, |call| change(call, ("axpy", number), count.into(), Some(alpha), vectors))
    }

    fn cublasScalEx(
        handle: HandleId, count: Int, alpha: At<u8>, alpha_type: c_int, x: u64, x_type: c_int, incx: Int,
        execution: c_int
    ) also cublasScalEx_64 {
        let number = one_type("cublasScalEx", &[alpha_type, x_type, execution])?;
        let increment = i64::from(incx);
        // As in BLAS, nothing happens if the increment is not positive.
        let count = if increment > 0 { i64::from(count) } else { 0 };
        let x = Vector { at: x, increment };
        with(handle, |call| change(call, ("scal", number), count, Some(alpha), (x, x)))
    }

    fn cublasCopyEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, y: u64, y_type: c_int, incy: Int
    ) also cublasCopyEx_64 {
        let number = one_type("cublasCopyEx", &[x_type, y_type])?;
        let vectors = (Vector { at: x, increment: incx.into() }, Vector { at: y, increment: incy.into() });
        with(handle, |call| change(call, ("copy", number), count.into(), None, vectors))
    }

    fn cublasSwapEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, y: u64, y_type: c_int, incy: Int
    ) also cublasSwapEx_64 {
        let number = one_type("cublasSwapEx", &[x_type, y_type])?;
        let vectors = (Vector { at: x, increment: incx.into() }, Vector { at: y, increment: incy.into() });
        with(handle, |call| change(call, ("swap", number), count.into(), None, vectors))
    }

    fn cublasDotEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, y: u64, y_type: c_int, incy: Int,
        result: At<u8>, result_type: c_int, execution: c_int
    ) also cublasDotEx_64 {
        let number = one_type("cublasDotEx", &[x_type, y_type, result_type, execution])?;
        let vectors = (Vector { at: x, increment: incx.into() }, Vector { at: y, increment: incy.into() });
        with(handle, |call| reduce(call, ("dot", number), count.into(), vectors, result))
    }

    /// The conjugate of a real vector is the vector.
    fn cublasDotcEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, y: u64, y_type: c_int, incy: Int,
        result: At<u8>, result_type: c_int, execution: c_int
    ) also cublasDotcEx_64 {
        let number = one_type("cublasDotcEx", &[x_type, y_type, result_type, execution])?;
        let vectors = (Vector { at: x, increment: incx.into() }, Vector { at: y, increment: incy.into() });
        with(handle, |call| reduce(call, ("dot", number), count.into(), vectors, result))
    }

    fn cublasNrm2Ex(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, result: At<u8>, result_type: c_int,
        execution: c_int
    ) also cublasNrm2Ex_64 {
        let number = one_type("cublasNrm2Ex", &[x_type, result_type, execution])?;
        let x = Vector { at: x, increment: incx.into() };
        with(handle, |call| reduce(call, ("nrm2", number), count.into(), (x, x), result))
    }

    fn cublasAsumEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, result: At<u8>, result_type: c_int,
        execution: c_int
    ) also cublasAsumEx_64 {
        let number = one_type("cublasAsumEx", &[x_type, result_type, execution])?;
        let x = Vector { at: x, increment: incx.into() };
        with(handle, |call| reduce(call, ("asum", number), count.into(), (x, x), result))
    }

    fn cublasIamaxEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, result: At<u8>
    ) also cublasIamaxEx_64 {
        let number = one_type("cublasIamaxEx", &[x_type])?;
        let (x, result) = (Vector { at: x, increment: incx.into() }, (result, size_of::<Int>()));
        with(handle, |call| position(call, ("iamax", number), count.into(), x, result))
    }

    fn cublasIaminEx(
        handle: HandleId, count: Int, x: u64, x_type: c_int, incx: Int, result: At<u8>
    ) also cublasIaminEx_64 {
        let number = one_type("cublasIaminEx", &[x_type])?;
        let (x, result) = (Vector { at: x, increment: incx.into() }, (result, size_of::<Int>()));
        with(handle, |call| position(call, ("iamin", number), count.into(), x, result))
    }
}

/// The type of all arguments of a call: f32 or f64.
fn one_type(name: &'static str, types: &[c_int]) -> Result<Number, Status> {
    let number = types.first().and_then(|first| number_of(*first));
    match number {
        Some(number @ (Number::F32 | Number::F64)) if types.iter().all(|other| Some(other) == types.first()) => {
            Ok(number)
        }
        _ => Err(refused(name, &format!("types {types:?}"))),
    }
}
