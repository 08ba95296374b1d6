//! Level 1: operations on vectors.

use super::entry_points;
use crate::handle::with;
use crate::vector::{Vector, change, position, reduce};
use atoll_cuda_library::{At, HandleId, Number};

/// Declares the operations for one type: each name, and its name with 64-bit integers.
macro_rules! level_one {
    (
        $number:expr, $axpy:ident $axpy_64:ident $scal:ident $scal_64:ident $copy:ident $copy_64:ident
        $swap:ident $swap_64:ident $dot:ident $dot_64:ident $nrm2:ident $nrm2_64:ident
        $asum:ident $asum_64:ident $iamax:ident $iamax_64:ident $iamin:ident $iamin_64:ident
    ) => {
        entry_points! {
            fn $axpy(
                handle: HandleId, count: Int, alpha: At<u8>, x: u64, incx: Int, y: u64, incy: Int
            ) also $axpy_64 {
                let vectors = pair(x, incx.into(), y, incy.into());
                with(handle, |call| change(call, ("axpy", $number), count.into(), Some(alpha), vectors))
            }

            fn $scal(handle: HandleId, count: Int, alpha: At<u8>, x: u64, incx: Int) also $scal_64 {
                let increment = i64::from(incx);
                // As in BLAS, nothing happens if the increment is not positive.
                let count = if increment > 0 { i64::from(count) } else { 0 };
                let vectors = pair(x, increment, x, increment);
                with(handle, |call| change(call, ("scal", $number), count, Some(alpha), vectors))
            }

            fn $copy(handle: HandleId, count: Int, x: u64, incx: Int, y: u64, incy: Int) also $copy_64 {
                let vectors = pair(x, incx.into(), y, incy.into());
                with(handle, |call| change(call, ("copy", $number), count.into(), None, vectors))
            }

            fn $swap(handle: HandleId, count: Int, x: u64, incx: Int, y: u64, incy: Int) also $swap_64 {
                let vectors = pair(x, incx.into(), y, incy.into());
                with(handle, |call| change(call, ("swap", $number), count.into(), None, vectors))
            }

            fn $dot(
                handle: HandleId, count: Int, x: u64, incx: Int, y: u64, incy: Int, result: At<u8>
            ) also $dot_64 {
                let vectors = pair(x, incx.into(), y, incy.into());
                with(handle, |call| reduce(call, ("dot", $number), count.into(), vectors, result))
            }

            fn $nrm2(handle: HandleId, count: Int, x: u64, incx: Int, result: At<u8>) also $nrm2_64 {
                let vectors = pair(x, incx.into(), x, incx.into());
                with(handle, |call| reduce(call, ("nrm2", $number), count.into(), vectors, result))
            }

            fn $asum(handle: HandleId, count: Int, x: u64, incx: Int, result: At<u8>) also $asum_64 {
                let vectors = pair(x, incx.into(), x, incx.into());
                with(handle, |call| reduce(call, ("asum", $number), count.into(), vectors, result))
            }

            fn $iamax(handle: HandleId, count: Int, x: u64, incx: Int, result: At<u8>) also $iamax_64 {
                let x = Vector { at: x, increment: incx.into() };
                let result = (result, size_of::<Int>());
                with(handle, |call| position(call, ("iamax", $number), count.into(), x, result))
            }

            fn $iamin(handle: HandleId, count: Int, x: u64, incx: Int, result: At<u8>) also $iamin_64 {
                let x = Vector { at: x, increment: incx.into() };
                let result = (result, size_of::<Int>());
                with(handle, |call| position(call, ("iamin", $number), count.into(), x, result))
            }
        }
    };
}

level_one! {
    Number::F32, cublasSaxpy_v2 cublasSaxpy_v2_64 cublasSscal_v2 cublasSscal_v2_64 cublasScopy_v2 cublasScopy_v2_64
    cublasSswap_v2 cublasSswap_v2_64 cublasSdot_v2 cublasSdot_v2_64 cublasSnrm2_v2 cublasSnrm2_v2_64
    cublasSasum_v2 cublasSasum_v2_64 cublasIsamax_v2 cublasIsamax_v2_64 cublasIsamin_v2 cublasIsamin_v2_64
}

level_one! {
    Number::F64, cublasDaxpy_v2 cublasDaxpy_v2_64 cublasDscal_v2 cublasDscal_v2_64 cublasDcopy_v2 cublasDcopy_v2_64
    cublasDswap_v2 cublasDswap_v2_64 cublasDdot_v2 cublasDdot_v2_64 cublasDnrm2_v2 cublasDnrm2_v2_64
    cublasDasum_v2 cublasDasum_v2_64 cublasIdamax_v2 cublasIdamax_v2_64 cublasIdamin_v2 cublasIdamin_v2_64
}

fn pair(x: u64, x_increment: i64, y: u64, y_increment: i64) -> (Vector, Vector) {
    (Vector { at: x, increment: x_increment }, Vector { at: y, increment: y_increment })
}
