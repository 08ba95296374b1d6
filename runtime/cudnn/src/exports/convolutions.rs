//! Convolutions and their gradients.

use super::algorithms::{BACKWARD_DATA, BACKWARD_FILTER, FORWARD, problem};
use super::values::{activation, sum_of};
use super::{entry_points, operand};
use crate::checks::refused;
use crate::convolve::Epilogue;
use crate::descriptors::{Activation, Convolution, Filter, Id, get};
use crate::factors::is_zero;
use crate::handle::with;
use crate::kernels::{Combine, Rows};
use crate::point::Numbers;
use crate::rows;
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::c_int;

/// Whether a tensor has one number for each channel of another.
fn has_one_for_each_channel(tensor: &Tensor, of: &Tensor) -> bool {
    let channels = of.sizes[1];
    tensor.rank > 1 && tensor.sizes[1] == channels && tensor.count() == u64::from(channels.unsigned_abs())
}

entry_points! {
    fn cudnnConvolutionForward(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, w: Id<Filter>, w_at: u64,
        convolution: Id<Convolution>, algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>, y: Id<Tensor>,
        y_at: u64
    ) {
        FORWARD.have(algorithm)?;
        let problem = problem("cudnnConvolutionForward", (x, w, convolution, y))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.forward(call, [x_at, w_at, y_at], None, numbers))
    }

    /// y = activation(alpha * convolution + alpha_z * z + bias). With alpha_z = 0, z is not read.
    fn cudnnConvolutionBiasActivationForward(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, w: Id<Filter>, w_at: u64,
        convolution: Id<Convolution>, algorithm: c_int, _workspace: u64, _bytes: usize, alpha_z: At<u8>,
        z: Id<Tensor>, z_at: u64, bias: Id<Tensor>, bias_at: u64, activation_id: Id<Activation>, y: Id<Tensor>,
        y_at: u64
    ) {
        const NAME: &str = "cudnnConvolutionBiasActivationForward";
        FORWARD.have(algorithm)?;
        let problem = problem(NAME, (x, w, convolution, y))?;
        let numbers = Numbers::new(problem.sum(), alpha, alpha_z)?;
        let (of_y, bias) = (operand(y, y_at)?, operand(bias, bias_at)?);
        let reads_z = !is_zero(problem.sum(), numbers.beta);
        let old = if reads_z { operand(z, z_at)? } else { of_y };
        if old.tensor.data_type != of_y.tensor.data_type || bias.tensor.data_type != of_y.tensor.data_type {
            return Err(refused(NAME, "tensors of different types"));
        }
        let is_bias = has_one_for_each_channel(&bias.tensor, &of_y.tensor);
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
        convolution: Id<Convolution>, algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>,
        dx: Id<Tensor>, dx_at: u64
    ) {
        BACKWARD_DATA.have(algorithm)?;
        let problem = problem("cudnnConvolutionBackwardData", (dx, w, convolution, dy))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.backward_data(call, [dx_at, w_at, dy_at], numbers))
    }

    fn cudnnConvolutionBackwardFilter(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, dy: Id<Tensor>, dy_at: u64,
        convolution: Id<Convolution>, algorithm: c_int, _workspace: u64, _bytes: usize, beta: At<u8>,
        dw: Id<Filter>, dw_at: u64
    ) {
        BACKWARD_FILTER.have(algorithm)?;
        let problem = problem("cudnnConvolutionBackwardFilter", (x, dw, convolution, dy))?;
        let numbers = Numbers::new(problem.sum(), alpha, beta)?;
        with(handle, |call| problem.backward_filter(call, [x_at, dw_at, dy_at], numbers))
    }

    /// The gradient with respect to the bias: sums over everything but channels.
    fn cudnnConvolutionBackwardBias(
        handle: HandleId, alpha: At<u8>, dy: Id<Tensor>, dy_at: u64, beta: At<u8>, db: Id<Tensor>, db_at: u64
    ) {
        const NAME: &str = "cudnnConvolutionBackwardBias";
        let (dy, db) = (operand(dy, dy_at)?, operand(db, db_at)?);
        if !has_one_for_each_channel(&db.tensor, &dy.tensor) {
            return Err(Status::InvalidValue);
        }
        let numbers = Numbers::new(sum_of(NAME, &dy.tensor)?, alpha, beta)?;
        let op = Rows::Reduce(Combine::Add);
        with(handle, |call| rows::launch(call, NAME, op, (dy, db), |dimension| dimension != 1, numbers))
    }
}
