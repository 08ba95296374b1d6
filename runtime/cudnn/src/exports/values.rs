//! Operations on the elements of tensors: activations, sums, products, copies.

use super::{descriptor, entry_points, operand};
use crate::checks::{computes_in, element_bytes, give, is_among, refused};
use crate::descriptors::{Activation, Id, Operation, change, get, set};
use crate::factors::{bits, factor};
use crate::handle::with;
use crate::kernels::{self, Combine, Point, Types};
use crate::point::{Numbers, Operand, launch};
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Number, Status, half};
use std::ffi::c_int;

descriptor! { Activation: cudnnCreateActivationDescriptor cudnnDestroyActivationDescriptor }
descriptor! { Operation: cudnnCreateOpTensorDescriptor cudnnDestroyOpTensorDescriptor }

/// The function of a kernel for a descriptor, and the bits of its coefficient.
pub(super) fn activation(of: &Activation, sum: Number) -> (kernels::Activation, u64) {
    let keeps_nan = of.nan != 0;
    let function = match of.mode {
        0 => kernels::Activation::Sigmoid,
        1 => kernels::Activation::Relu { keeps_nan },
        2 => kernels::Activation::Tanh,
        3 => kernels::Activation::ClippedRelu { keeps_nan },
        4 => kernels::Activation::Elu,
        6 => kernels::Activation::Swish,
        _ => kernels::Activation::Identity,
    };
    (function, bits(sum, if of.mode == 6 { of.swish_beta } else { of.coefficient }))
}

/// The type in which a kernel computes with a tensor.
pub(super) fn sum_of(name: &'static str, tensor: &Tensor) -> Result<Number, Status> {
    let number = tensor.number(name)?;
    Ok(Types { input: number, output: number }.sum())
}

/// y = alpha * x + beta * y, where x has the sizes of y or 1.
fn copy(
    handle: HandleId,
    name: &'static str,
    (alpha, beta): (At<u8>, At<u8>),
    (x, y): (Operand, Operand),
) -> Result<(), Status> {
    let sum = sum_of(name, &y.tensor)?;
    let numbers = Numbers::new(sum, alpha, beta)?;
    let op = Point::Copy(kernels::Activation::Identity);
    with(handle, |call| launch(call, name, op, (&[x], &[]), y, numbers))
}

entry_points! {
    fn cudnnSetActivationDescriptor(id: Id<Activation>, mode: c_int, nan: c_int, coefficient: f64) {
        is_among(mode, 7)?;
        is_among(nan, 2)?;
        change(id, |known| {
            // Swish without a factor of its own is v * sigmoid(v).
            let swish_beta = if known.swish_beta == 0.0 { 1.0 } else { known.swish_beta };
            *known = Activation { mode, nan, coefficient, swish_beta };
        })
    }

    fn cudnnGetActivationDescriptor(
        id: Id<Activation>, mode: At<c_int>, nan: At<c_int>, coefficient: At<f64>
    ) {
        let known = get(id)?;
        give(mode, known.mode)?;
        give(nan, known.nan)?;
        give(coefficient, known.coefficient)
    }

    fn cudnnSetActivationDescriptorSwishBeta(id: Id<Activation>, beta: f64) {
        change(id, |known| known.swish_beta = beta)
    }

    fn cudnnGetActivationDescriptorSwishBeta(id: Id<Activation>, beta: At<f64>) {
        beta.set(get(id)?.swish_beta)
    }

    fn cudnnActivationForward(
        handle: HandleId, id: Id<Activation>, alpha: At<u8>, x: Id<Tensor>, x_at: u64, beta: At<u8>, y: Id<Tensor>,
        y_at: u64
    ) {
        const NAME: &str = "cudnnActivationForward";
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        if !x.tensor.has_sizes_of(&y.tensor) || x.tensor.data_type != y.tensor.data_type {
            return Err(Status::InvalidValue);
        }
        let sum = sum_of(NAME, &y.tensor)?;
        let (function, coefficient) = activation(&get(id)?, sum);
        let numbers =
            Numbers { coefficient, ..Numbers::new(sum, alpha, beta)? };
        with(handle, |call| launch(call, NAME, Point::Copy(function), (&[x], &[]), y, numbers))
    }

    /// C = alpha * A + beta * C, where A has the sizes of C or 1.
    fn cudnnAddTensor(
        handle: HandleId, alpha: At<u8>, a: Id<Tensor>, a_at: u64, beta: At<u8>, c: Id<Tensor>, c_at: u64
    ) {
        copy(handle, "cudnnAddTensor", (alpha, beta), (operand(a, a_at)?, operand(c, c_at)?))
    }

    fn cudnnTransformTensor(
        handle: HandleId, alpha: At<u8>, x: Id<Tensor>, x_at: u64, beta: At<u8>, y: Id<Tensor>, y_at: u64
    ) {
        let (x, y) = (operand(x, x_at)?, operand(y, y_at)?);
        if !x.tensor.has_sizes_of(&y.tensor) {
            return Err(Status::InvalidValue);
        }
        copy(handle, "cudnnTransformTensor", (alpha, beta), (x, y))
    }

    fn cudnnScaleTensor(handle: HandleId, y: Id<Tensor>, y_at: u64, alpha: At<u8>) {
        const NAME: &str = "cudnnScaleTensor";
        let y = operand(y, y_at)?;
        let numbers = Numbers { alpha: factor(sum_of(NAME, &y.tensor)?, alpha)?, ..Numbers::default() };
        let op = Point::Copy(kernels::Activation::Identity);
        with(handle, |call| launch(call, NAME, op, (&[y], &[]), y, numbers))
    }

    /// The value is of the tensor's type.
    fn cudnnSetTensor(handle: HandleId, y: Id<Tensor>, y_at: u64, value: At<u8>) {
        const NAME: &str = "cudnnSetTensor";
        let y = operand(y, y_at)?;
        let value = match y.tensor.number(NAME)? {
            Number::F64 => value.cast::<f64>().get()?,
            Number::F16 => half(value.cast::<u16>().get()?).into(),
            Number::Bf16 => f32::from_bits(u32::from(value.cast::<u16>().get()?) << 16).into(),
            _ => value.cast::<f32>().get()?.into(),
        };
        let numbers = Numbers { alpha: bits(sum_of(NAME, &y.tensor)?, value), ..Numbers::default() };
        with(handle, |call| launch(call, NAME, Point::Set, (&[], &[]), y, numbers))
    }

    fn cudnnSetOpTensorDescriptor(id: Id<Operation>, operation: c_int, compute_type: c_int, nan: c_int) {
        is_among(operation, 6)?;
        is_among(nan, 2)?;
        element_bytes(compute_type)?;
        set(id, Operation { operation, compute_type, nan })
    }

    fn cudnnGetOpTensorDescriptor(
        id: Id<Operation>, operation: At<c_int>, compute_type: At<c_int>, nan: At<c_int>
    ) {
        let known = get(id)?;
        give(operation, known.operation)?;
        give(compute_type, known.compute_type)?;
        give(nan, known.nan)
    }

    /// C = operation(alpha_a * A, alpha_b * B) + beta * C, where B has the sizes of C or 1.
    fn cudnnOpTensor(
        handle: HandleId, id: Id<Operation>, alpha_a: At<u8>, a: Id<Tensor>, a_at: u64, alpha_b: At<u8>,
        b: Id<Tensor>, b_at: u64, beta: At<u8>, c: Id<Tensor>, c_at: u64
    ) {
        const NAME: &str = "cudnnOpTensor";
        let operation = get(id)?;
        let keeps_nan = operation.nan != 0;
        let op = match operation.operation {
            0 => Point::Combine(Combine::Add),
            1 => Point::Combine(Combine::Mul),
            2 => Point::Combine(Combine::Min { keeps_nan }),
            3 => Point::Combine(Combine::Max { keeps_nan }),
            4 => Point::Root,
            _ => Point::Not,
        };
        let (a, c) = (operand(a, a_at)?, operand(c, c_at)?);
        if !a.tensor.has_sizes_of(&c.tensor) {
            return Err(Status::InvalidValue);
        }
        computes_in(NAME, a.tensor.number(NAME)?, operation.compute_type)?;
        let sum = sum_of(NAME, &c.tensor)?;
        let numbers = Numbers::new(sum, alpha_a, beta)?;
        if !matches!(op, Point::Combine(_)) {
            return with(handle, |call| launch(call, NAME, op, (&[a], &[]), c, numbers));
        }
        let b = operand(b, b_at)?;
        if b.tensor.data_type != a.tensor.data_type {
            return Err(refused(NAME, "inputs of different types"));
        }
        let numbers = Numbers { alpha_b: factor(sum, alpha_b)?, ..numbers };
        with(handle, |call| launch(call, NAME, op, (&[a, b], &[]), c, numbers))
    }
}
