//! Operations on elements.

use crate::checks::refused;
use crate::factors::{bits, factor};
use crate::handle::Call;
use crate::kernels::{Code, Point, THREADS, Types};
use crate::tensor::{Space, Tensor, check_in_place};
use atoll_cuda_library::{At, Number, Status};

/// A tensor in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) tensor: Tensor,
    pub(crate) at: u64,
}

/// The numbers of an operation, as bits of the type in which it computes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) alpha: u64,
    /// The factor of the second tensor.
    pub(crate) alpha_b: u64,
    pub(crate) beta: u64,
    pub(crate) coefficient: u64,
}

impl Numbers {
    /// The factors of a call; null is an error.
    pub(crate) fn new(sum: Number, alpha: At<u8>, beta: At<u8>) -> Result<Numbers, Status> {
        Ok(Numbers { alpha: factor(sum, alpha)?, beta: factor(sum, beta)?, ..Numbers::default() })
    }

    /// alpha = 1, beta = 0.
    pub(crate) fn unchanged(sum: Number) -> Numbers {
        Numbers { alpha: bits(sum, 1.0), ..Numbers::default() }
    }
}

/// Computes each element of `y` from those of the inputs, which have the sizes of `y` or 1. The inputs
/// after the data are parameters of the type in which the kernel computes.
pub(crate) fn launch(
    call: &mut Call<'_>,
    name: &'static str,
    op: Point,
    (data, parameters): (&[Operand], &[Operand]),
    y: Operand,
    numbers: Numbers,
) -> Result<(), Status> {
    let output = y.tensor.number(name)?;
    let input = match data.first() {
        Some(first) => first.tensor.number(name)?,
        None => output,
    };
    let types = Types { input, output };
    for operand in data {
        if operand.tensor.number(name)? != input {
            return Err(refused(name, "inputs of different types"));
        }
    }
    if (input == Number::F64) != (output == Number::F64) {
        return Err(refused(name, "tensors of f64 with others"));
    }
    for operand in parameters {
        if operand.tensor.number(name)? != types.sum() {
            return Err(Status::InvalidValue);
        }
    }
    let mut steps = Vec::with_capacity(data.len() + parameters.len() + 1);
    for operand in data {
        steps.push(operand.tensor.steps_for(&y.tensor, input)?);
    }
    for operand in parameters {
        steps.push(operand.tensor.steps_for(&y.tensor, types.sum())?);
    }
    steps.push(y.tensor.steps_for(&y.tensor, output)?);
    let operands: Vec<Operand> = data.iter().chain(parameters).chain([&y]).copied().collect();
    if operands.iter().any(|operand| operand.at == 0) {
        return Err(Status::InvalidValue);
    }
    let sizes = &y.tensor.sizes[..y.tensor.rank];
    for (operand, own) in operands.iter().zip(&steps) {
        check_in_place(sizes, (operand.at, own), (y.at, &steps[steps.len() - 1]))?;
    }
    let space = Space::of(sizes, &steps);
    let count = space.count();
    let mut values: Vec<u64> = space.sizes.iter().map(|size| u64::from(*size)).collect();
    for (operand, steps) in operands.iter().zip(&space.steps) {
        values.push(operand.at);
        values.extend(steps.iter().map(|step| *step as u64));
    }
    values.extend([numbers.alpha, numbers.alpha_b, numbers.beta, numbers.coefficient, count.into()]);
    let code = Code::Point { types, op, rank: space.rank() };
    call.launch((code, code.name()), ([count.div_ceil(THREADS), 1, 1], THREADS), &values)
}
