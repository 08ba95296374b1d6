//! Normalization: of batches with known means, and across channels.

use super::values::sum_of;
use super::{descriptor, entry_points, operand};
use crate::checks::{give, is_among};
use crate::descriptors::{Id, Response, get, set};
use crate::factors::bits;
use crate::handle::with;
use crate::kernels::Point;
use crate::point::{Numbers, Operand, launch};
use crate::tensor::{Format, Tensor};
use crate::window::respond;
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::{c_int, c_uint};

descriptor! { Response: cudnnCreateLRNDescriptor cudnnDestroyLRNDescriptor }

/// The smallest and largest window, and the smallest k and beta, as in cuDNN.
const WINDOW_MAX: c_uint = 16;
const K_MIN: f64 = 1e-5;
const BETA_MIN: f64 = 0.01;

/// `cudnnBatchNormMode_t`: parameters for each element of an image, not for each channel.
const PER_ACTIVATION: c_int = 0;

/// `cudnnDataType_t`: f64 and f32.
const DOUBLE: c_int = 1;
const FLOAT: c_int = 0;

/// The tensor of parameters for a tensor: f64 if that is, else f32.
fn parameters_of(x: &Tensor, mode: c_int) -> Result<Tensor, Status> {
    is_among(mode, 3)?;
    if x.rank < 2 {
        return Err(Status::InvalidValue);
    }
    let mut sizes = x.sizes;
    sizes[0] = 1;
    if mode != PER_ACTIVATION {
        sizes[2..].fill(1);
    }
    let data_type = if x.data_type == DOUBLE { DOUBLE } else { FLOAT };
    Tensor::packed(data_type, Format::Nchw, x.rank, sizes)
}

entry_points! {
    fn cudnnDeriveBNTensorDescriptor(derived: Id<Tensor>, x: Id<Tensor>, mode: c_int) {
        set(derived, parameters_of(&get(x)?, mode)?)
    }

    /// y = alpha * ((x - mean) / sqrt(variance + epsilon) * scale + bias) + beta * y.
    fn cudnnBatchNormalizationForwardInference(
        handle: HandleId, mode: c_int, alpha: At<u8>, beta: At<u8>, x: Id<Tensor>, x_at: u64, y: Id<Tensor>,
        y_at: u64, parameters: Id<Tensor>, scale: u64, bias: u64, mean: u64, variance: u64, epsilon: f64
    ) {
        const NAME: &str = "cudnnBatchNormalizationForwardInference";
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        let tensor = get(parameters)?;
        let fits = x.tensor.has_sizes_of(&y.tensor) && tensor.has_sizes_of(&parameters_of(&x.tensor, mode)?);
        if !fits || epsilon.is_nan() || epsilon < 0.0 {
            return Err(Status::InvalidValue);
        }
        let sum = sum_of(NAME, &x.tensor)?;
        let numbers = Numbers { coefficient: bits(sum, epsilon), ..Numbers::new(sum, alpha, beta)? };
        let parameters = [scale, bias, mean, variance].map(|at| Operand { tensor, at });
        with(handle, |call| launch(call, NAME, Point::Normalize, (&[x], &parameters), y, numbers))
    }

    fn cudnnSetLRNDescriptor(id: Id<Response>, window: c_uint, alpha: f64, beta: f64, k: f64) {
        let is_valid = (1..=WINDOW_MAX).contains(&window) && beta >= BETA_MIN && k >= K_MIN && !alpha.is_nan();
        if !is_valid {
            return Err(Status::InvalidValue);
        }
        set(id, Response { window, alpha, beta, k })
    }

    fn cudnnGetLRNDescriptor(
        id: Id<Response>, window: At<c_uint>, alpha: At<f64>, beta: At<f64>, k: At<f64>
    ) {
        let known = get(id)?;
        give(window, known.window)?;
        give(alpha, known.alpha)?;
        give(beta, known.beta)?;
        give(k, known.k)
    }

    fn cudnnLRNCrossChannelForward(
        handle: HandleId, id: Id<Response>, mode: c_int, alpha: At<u8>, x: Id<Tensor>, x_at: u64, beta: At<u8>,
        y: Id<Tensor>, y_at: u64
    ) {
        const NAME: &str = "cudnnLRNCrossChannelForward";
        is_among(mode, 1)?;
        let response = get(id)?;
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        let sum = sum_of(NAME, &x.tensor)?;
        let numbers = Numbers::new(sum, alpha, beta)?;
        with(handle, |call| respond(call, NAME, &response, (x, y), numbers))
    }
}
