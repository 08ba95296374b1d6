//! Evaluates scalar programs.

use super::convert::{bit_cast, cast};
use super::{ReferenceError, broadcast_indices};
use crate::tensor::{Data, Tensor, is_float, round_float, wrap_int};
use crate::tensor_graph::{PointArg, PointOp, PointProgram, PointStep};
use atoll_kgraph::DType;

/// One element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar {
    Float(f64),
    /// An integer; an unsigned 64-bit number as the `i64` with the same bits.
    Int(i64),
}

impl Scalar {
    fn float(self) -> f64 {
        match self {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f64,
        }
    }

    fn int(self) -> i64 {
        match self {
            Scalar::Float(value) => value as i64,
            Scalar::Int(value) => value,
        }
    }
}

pub(super) fn run(
    program: &PointProgram,
    inputs: &[&Tensor],
    dtype: DType,
    shape: &[usize],
) -> Result<Tensor, ReferenceError> {
    let count: usize = shape.iter().product();
    let operands = Operands::new(inputs, shape);
    let results = (0..count).map(|i| operands.apply(program, None, i)).collect::<Result<Vec<Scalar>, _>>()?;
    Ok(collect(dtype, shape, results.into_iter()))
}

/// Operands of a program, broadcast to the output's shape.
pub(super) struct Operands<'a> {
    tensors: Vec<(&'a Tensor, Vec<usize>)>,
}

impl<'a> Operands<'a> {
    pub(super) fn new(inputs: &[&'a Tensor], shape: &[usize]) -> Operands<'a> {
        Operands { tensors: inputs.iter().map(|t| (*t, broadcast_indices(&t.shape, shape))).collect() }
    }

    /// Runs the program for output element `element`. In an epilogue, `accumulated` is input 0 and
    /// the tensors are the following inputs.
    pub(super) fn apply(
        &self,
        program: &PointProgram,
        accumulated: Option<(DType, Scalar)>,
        element: usize,
    ) -> Result<Scalar, ReferenceError> {
        let input = |index: usize| match (accumulated, index) {
            (Some(value), 0) => value,
            (Some(_), index) => self.load(index - 1, element),
            (None, index) => self.load(index, element),
        };
        let mut results: Vec<(DType, Scalar)> = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            let args: Vec<(DType, Scalar)> = step
                .args
                .iter()
                .map(|arg| match arg {
                    PointArg::Input(index) => input(*index as usize),
                    PointArg::Step(index) => results[*index as usize],
                    PointArg::Const(value) => (step.ty, number(step.ty, *value)),
                })
                .collect();
            let from = args.first().map_or(step.ty, |(ty, _)| *ty);
            let args: Vec<Scalar> = args.into_iter().map(|(_, value)| value).collect();
            if step.may_divide_by_zero() && args[1].int() == 0 {
                return Err(ReferenceError::DivisionByZero);
            }
            results.push((step.result_type(), run_step(step, from, &args)));
        }
        Ok(results.last().copied().unwrap_or_else(|| input(0)).1)
    }

    fn load(&self, operand: usize, element: usize) -> (DType, Scalar) {
        let (tensor, indices) = &self.tensors[operand];
        let value = match &tensor.data {
            Data::Float(values) => Scalar::Float(values[indices[element]]),
            Data::Int(values) => Scalar::Int(values[indices[element]]),
        };
        (tensor.dtype, value)
    }
}

pub(super) fn collect(dtype: DType, shape: &[usize], elements: impl Iterator<Item = Scalar>) -> Tensor {
    if is_float(dtype) {
        Tensor::floats(dtype, shape.to_vec(), elements.map(Scalar::float))
    } else {
        Tensor::ints(dtype, shape.to_vec(), elements.map(Scalar::int))
    }
}

/// A constant of a type.
pub(super) fn number(ty: DType, value: f64) -> Scalar {
    if is_float(ty) { Scalar::Float(round_float(ty, value)) } else { Scalar::Int(value as i64) }
}

/// Evaluates one step; `from` is the type of its first operand.
pub(super) fn run_step(step: &PointStep, from: DType, args: &[Scalar]) -> Scalar {
    let truth = |value: bool| Scalar::Int(i64::from(value));
    match step.op {
        PointOp::Identity => return args[0],
        PointOp::Where => return args[if args[0].int() != 0 { 1 } else { 2 }],
        PointOp::Cast => return cast(from, step.ty, args[0]),
        PointOp::BitCast => return bit_cast(from, step.ty, args[0]),
        PointOp::And => return truth(args[0].int() != 0 && args[1].int() != 0),
        PointOp::Or => return truth(args[0].int() != 0 || args[1].int() != 0),
        PointOp::Xor => return truth((args[0].int() != 0) != (args[1].int() != 0)),
        PointOp::Not => return truth(args[0].int() == 0),
        _ => {}
    }
    if is_float(step.ty) {
        let values: Vec<f64> = args.iter().map(|a| a.float()).collect();
        return compare(step.op, &values)
            .map_or_else(|| Scalar::Float(round_float(step.ty, float_step(step.op, &values))), truth);
    }
    let values: Vec<i64> = args.iter().map(|a| a.int()).collect();
    if step.ty == DType::U64 {
        let values: Vec<u64> = values.iter().map(|v| *v as u64).collect();
        return compare(step.op, &values).map_or_else(|| Scalar::Int(unsigned_step(step.op, &values) as i64), truth);
    }
    compare(step.op, &values).map_or_else(|| Scalar::Int(wrap_int(step.ty, int_step(step.op, step.ty, &values))), truth)
}

fn compare<T: PartialOrd>(op: PointOp, x: &[T]) -> Option<bool> {
    Some(match op {
        PointOp::Equal => x[0] == x[1],
        PointOp::Less => x[0] < x[1],
        PointOp::LessOrEqual => x[0] <= x[1],
        PointOp::Greater => x[0] > x[1],
        PointOp::GreaterOrEqual => x[0] >= x[1],
        _ => return None,
    })
}

/// NumPy's rule: a NaN wins.
pub(super) fn nan_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

/// NumPy's rule: a NaN wins.
pub(super) fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn float_step(op: PointOp, x: &[f64]) -> f64 {
    let a = x[0];
    match op {
        PointOp::Add => a + x[1],
        PointOp::Sub => a - x[1],
        PointOp::Mul => a * x[1],
        PointOp::Div => a / x[1],
        PointOp::Pow => a.powf(x[1]),
        PointOp::Min => nan_min(a, x[1]),
        PointOp::Max => nan_max(a, x[1]),
        PointOp::Mod => a % x[1],
        PointOp::Neg => -a,
        PointOp::Abs => a.abs(),
        PointOp::Sign if a == 0.0 => 0.0,
        PointOp::Sign => a.signum(),
        PointOp::Reciprocal => 1.0 / a,
        PointOp::Sqrt => a.sqrt(),
        PointOp::Relu => nan_max(a, 0.0),
        PointOp::Floor => a.floor(),
        PointOp::Ceil => a.ceil(),
        PointOp::Round => a.round_ties_even(),
        PointOp::LeakyRelu(alpha) if a < 0.0 => f64::from(alpha) * a,
        PointOp::Elu(alpha) if a < 0.0 => f64::from(alpha) * a.exp_m1(),
        PointOp::HardSigmoid(alpha, beta) => (f64::from(alpha) * a + f64::from(beta)).clamp(0.0, 1.0),
        PointOp::Clip => nan_min(nan_max(a, x[1]), x[2]),
        _ => function(op, a),
    }
}

/// A function of one number; operations without one are the identity.
fn function(op: PointOp, a: f64) -> f64 {
    match op {
        PointOp::Exp => a.exp(),
        PointOp::Log => a.ln(),
        PointOp::Erf => libm::erf(a),
        PointOp::Sin => a.sin(),
        PointOp::Cos => a.cos(),
        PointOp::Tanh => a.tanh(),
        PointOp::Asin => a.asin(),
        PointOp::Acos => a.acos(),
        PointOp::Atan => a.atan(),
        PointOp::Sinh => a.sinh(),
        PointOp::Cosh => a.cosh(),
        PointOp::Asinh => libm::asinh(a),
        PointOp::Acosh => libm::acosh(a),
        PointOp::Atanh => libm::atanh(a),
        PointOp::Sigmoid => sigmoid(a),
        PointOp::Softplus => nan_max(a, 0.0) + (-a.abs()).exp().ln_1p(),
        _ => a,
    }
}

/// `1 / (1 + exp(-x))`, also used by the recurrent cells.
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Division truncates, as in ONNX; a division by zero has been reported before, except for a
/// constant divisor. The remainder has the sign of the divisor.
fn int_step(op: PointOp, ty: DType, x: &[i64]) -> i64 {
    let a = x[0];
    match op {
        PointOp::Add => a.wrapping_add(x[1]),
        PointOp::Sub => a.wrapping_sub(x[1]),
        PointOp::Mul => a.wrapping_mul(x[1]),
        PointOp::Div if x[1] == 0 => 0,
        PointOp::Div => a.wrapping_div(x[1]),
        PointOp::Mod if x[1] == 0 => 0,
        PointOp::Mod => {
            let rest = a.wrapping_rem(x[1]);
            if rest != 0 && (rest < 0) != (x[1] < 0) { rest + x[1] } else { rest }
        }
        PointOp::Pow if x[1] < 0 => match a {
            1 => 1,
            -1 => 1 - 2 * (x[1] & 1),
            _ => 0,
        },
        PointOp::Pow => power(a as u64, x[1] as u64) as i64,
        PointOp::Min => a.min(x[1]),
        PointOp::Max => a.max(x[1]),
        PointOp::Neg => a.wrapping_neg(),
        PointOp::Abs => a.wrapping_abs(),
        PointOp::Sign => a.signum(),
        PointOp::Relu => a.max(0),
        PointOp::Clip => a.max(x[1]).min(x[2]),
        PointOp::BitAnd => a & x[1],
        PointOp::BitOr => a | x[1],
        PointOp::BitXor => a ^ x[1],
        PointOp::BitNot => !a,
        PointOp::ShiftLeft | PointOp::ShiftRight if !(0..8 * ty.bytes() as i64).contains(&x[1]) => 0,
        PointOp::ShiftLeft => a << x[1],
        PointOp::ShiftRight => a >> x[1],
        _ => a,
    }
}

/// As [`int_step`], for U64; operations that do not depend on the sign are shared.
fn unsigned_step(op: PointOp, x: &[u64]) -> u64 {
    let a = x[0];
    match op {
        PointOp::Div => a.checked_div(x[1]).unwrap_or(0),
        PointOp::Mod => a.checked_rem(x[1]).unwrap_or(0),
        PointOp::Pow => power(a, x[1]),
        PointOp::Min => a.min(x[1]),
        PointOp::Max => a.max(x[1]),
        PointOp::Sign => a.min(1),
        PointOp::Abs | PointOp::Relu => a,
        PointOp::Clip => a.max(x[1]).min(x[2]),
        PointOp::ShiftRight => a.checked_shr(u32::try_from(x[1]).unwrap_or(u32::MAX)).unwrap_or(0),
        _ => int_step(op, DType::U64, &x.iter().map(|v| *v as i64).collect::<Vec<i64>>()) as u64,
    }
}

/// A power by squaring; the low bits of the result do not depend on a sign.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = 1u64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}
