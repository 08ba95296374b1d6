//! Softmax.

use super::values::sum_of;
use super::{entry_points, operand};
use crate::checks::is_among;
use crate::descriptors::Id;
use crate::handle::with;
use crate::kernels::Rows;
use crate::point::Numbers;
use crate::rows::launch;
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::c_int;

/// `cudnnSoftmaxAlgorithm_t`: the logarithm of softmax.
const LOG: c_int = 2;

/// `cudnnSoftmaxMode_t`: over all elements of an image, not over channels only.
const INSTANCE: c_int = 0;

entry_points! {
    fn cudnnSoftmaxForward(
        handle: HandleId, algorithm: c_int, mode: c_int, alpha: At<u8>, x: Id<Tensor>, x_at: u64, beta: At<u8>,
        y: Id<Tensor>, y_at: u64
    ) {
        const NAME: &str = "cudnnSoftmaxForward";
        is_among(algorithm, 3)?;
        is_among(mode, 2)?;
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        if !x.tensor.has_sizes_of(&y.tensor) || x.tensor.data_type != y.tensor.data_type {
            return Err(Status::InvalidValue);
        }
        let sum = sum_of(NAME, &x.tensor)?;
        let numbers = Numbers::new(sum, alpha, beta)?;
        let op = if algorithm == LOG { Rows::LogSoftmax } else { Rows::Softmax };
        let is_inner = |dimension: usize| if mode == INSTANCE { dimension != 0 } else { dimension == 1 };
        with(handle, |call| launch(call, NAME, op, (x, y), is_inner, numbers))
    }
}
