//! Convolutions and their gradients.

use super::algorithms::problem;
use super::values::activation;
use super::{entry_points, operand};
use crate::checks::refused;
use crate::convolve::Epilogue;
use crate::descriptors::{Activation, Convolution, Filter, Id, get};
use crate::factors::is_zero;
use crate::handle::with;
use crate::kernels::Rows;
use crate::point::{Numbers, Operand};
use crate::rows;
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Number, Status};
use std::ffi::c_int;

entry_points! {
    fn cudnnConvolutionForward(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, w: Id<Filter>, w_at: u64,
        convolution: Id<Convolution>, _algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>, y: Id<Tensor>,
        y_at: u64
    ) {
        let problem = problem("cudnnConvolutionForward", (x, w, convolution, y))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.forward(call, [x_at, w_at, y_at], None, numbers))
    }

    /// y = activation(alpha * convolution + alpha_z * z + bias). With alpha_z = 0, z is not read.
    fn cudnnConvolutionBiasActivationForward(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, w: Id<Filter>, w_at: u64,
        convolution: Id<Convolution>, _algorithm: c_int, _workspace: u64, _bytes: usize, alpha_z: At<u8>,
        z: Id<Tensor>, z_at: u64, bias: Id<Tensor>, bias_at: u64, activation_id: Id<Activation>, y: Id<Tensor>,
        y_at: u64
    ) {
        const NAME: &str = "cudnnConvolutionBiasActivationForward";
        let problem = problem(NAME, (x, w, convolution, y))?;
        let numbers = Numbers::new(problem.sum(), alpha, alpha_z)?;
        let (of_y, bias) = (operand(y, y_at)?, operand(bias, bias_at)?);
        let reads_z = !is_zero(problem.sum(), numbers.beta);
        let old = if reads_z { operand(z, z_at)? } else { of_y };
        if old.tensor.data_type != of_y.tensor.data_type || bias.tensor.data_type != of_y.tensor.data_type {
            return Err(refused(NAME, "tensors of different types"));
        }
        let channels = of_y.tensor.sizes[1];
        let is_one_for_each = bias.tensor.count() == u64::from(channels.unsigned_abs());
        let is_bias = bias.tensor.rank > 1 && bias.tensor.sizes[1] == channels && is_one_for_each;
        if !is_bias || !old.tensor.has_sizes_of(&of_y.tensor) || bias.at == 0 {
            return Err(Status::InvalidValue);
        }
        let (activation, coefficient) = activation(&get(activation_id)?, problem.sum());
        let epilogue = Epilogue { old, bias: Some(bias), activation };
        let numbers = Numbers { coefficient, ..numbers };
        with(handle, |call| problem.forward(call, [x_at, w_at, y_at], Some(epilogue), numbers))
    }

    fn cudnnConvolutionBackwardData(
        handle: HandleId, alpha: At<u8>, w: Id<Filter>, w_at: u64, dy: Id<Tensor>, dy_at: u64,
        convolution: Id<Convolution>, _algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>,
        dx: Id<Tensor>, dx_at: u64
    ) {
        let problem = problem("cudnnConvolutionBackwardData", (dx, w, convolution, dy))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.backward_data(call, [dx_at, w_at, dy_at], numbers))
    }

    fn cudnnConvolutionBackwardFilter(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, dy: Id<Tensor>, dy_at: u64,
        convolution: Id<Convolution>, _algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>,
        dw: Id<Filter>, dw_at: u64
    ) {
        let problem = problem("cudnnConvolutionBackwardFilter", (x, dw, convolution, dy))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.backward_filter(call, [x_at, dw_at, dy_at], numbers))
    }

    /// The gradient with respect to the bias: sums over everything but channels.
    fn cudnnConvolutionBackwardBias(
        handle: HandleId, alpha: At<u8>, dy: Id<Tensor>, dy_at: u64, beta: At<u8>, db: Id<Tensor>, db_at: u64
    ) {
        const NAME: &str = "cudnnConvolutionBackwardBias";
        let (dy, db): (Operand, Operand) = (operand(dy, dy_at)?, operand(db, db_at)?);
        if db.tensor.rank < 2 || db.tensor.count() != u64::from(dy.tensor.sizes[1].unsigned_abs()) {
            return Err(Status::InvalidValue);
        }
        let sum = if dy.tensor.number(NAME)? == Number::F64 { Number::F64 } else { Number::F32 };
        let numbers = Numbers::new(sum, alpha, beta)?;
        let op = Rows::Reduce(crate::kernels::Combine::Add);
        with(handle, |call| rows::launch(call, NAME, op, (dy, db), |dimension| dimension != 1, numbers))
    }
}
