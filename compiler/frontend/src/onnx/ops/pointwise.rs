//! Elementwise operators; all become [`Op::Pointwise`](crate::tensor_graph::Op::Pointwise).

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::read::{dtype_name, input_dtype_of, stored_dtype_of};
use super::narrow::Rounding;
use super::strings;
use crate::program::ProgramBuilder;
use crate::tensor::{is_float, is_narrow_float};
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

/// The scalar operation of an ONNX operator, by its name.
fn point_op(operator: &str) -> Option<PointOp> {
    Some(match operator {
        "Abs" => PointOp::Abs,
        "Acos" => PointOp::Acos,
        "Acosh" => PointOp::Acosh,
        "Add" | "Sum" | "Mean" => PointOp::Add,
        "And" => PointOp::And,
        "Asin" => PointOp::Asin,
        "Asinh" => PointOp::Asinh,
        "Atan" => PointOp::Atan,
        "Atanh" => PointOp::Atanh,
        "BitwiseAnd" => PointOp::BitAnd,
        "BitwiseNot" => PointOp::BitNot,
        "BitwiseOr" => PointOp::BitOr,
        "BitwiseXor" => PointOp::BitXor,
        "Ceil" => PointOp::Ceil,
        "Cos" => PointOp::Cos,
        "Cosh" => PointOp::Cosh,
        "Div" => PointOp::Div,
        "Equal" => PointOp::Equal,
        "Erf" => PointOp::Erf,
        "Exp" => PointOp::Exp,
        "Floor" => PointOp::Floor,
        "Greater" => PointOp::Greater,
        "GreaterOrEqual" => PointOp::GreaterOrEqual,
        "Less" => PointOp::Less,
        "LessOrEqual" => PointOp::LessOrEqual,
        "Log" => PointOp::Log,
        "Max" => PointOp::Max,
        "Min" => PointOp::Min,
        "Mul" => PointOp::Mul,
        "Neg" => PointOp::Neg,
        "Not" => PointOp::Not,
        "Or" => PointOp::Or,
        "Reciprocal" => PointOp::Reciprocal,
        "Relu" => PointOp::Relu,
        "Round" => PointOp::Round,
        "Sigmoid" => PointOp::Sigmoid,
        "Sign" => PointOp::Sign,
        "Sin" => PointOp::Sin,
        "Sinh" => PointOp::Sinh,
        "Softplus" => PointOp::Softplus,
        "Sqrt" => PointOp::Sqrt,
        "Sub" => PointOp::Sub,
        "Tanh" => PointOp::Tanh,
        "Xor" => PointOp::Xor,
        _ => return None,
    })
}

fn op_of(call: &Call<'_>) -> LowerResult<PointOp> {
    point_op(&call.node.op_type)
        .ok_or_else(|| LowerError::Unsupported("there is no scalar operation of this name".into()))
}

fn is_comparison(op: PointOp) -> bool {
    matches!(op, PointOp::Equal | PointOp::Less | PointOp::LessOrEqual | PointOp::Greater | PointOp::GreaterOrEqual)
}

/// The common type of operands; an error if they differ, because ONNX has no implicit conversion.
pub(super) fn same_type(lowering: &Lowering, inputs: &[ValueId]) -> LowerResult<DType> {
    let dtype = lowering.dtype(inputs[0]);
    match inputs.iter().map(|id| lowering.dtype(*id)).find(|other| *other != dtype) {
        Some(other) => invalid(format!("its operands have different types, {dtype:?} and {other:?}")),
        None => Ok(dtype),
    }
}

/// A program on one operand that keeps the type.
pub(super) fn map(
    lowering: &mut Lowering,
    call: &Call<'_>,
    build: impl FnOnce(&mut ProgramBuilder, DType, PointArg),
) -> Results {
    let x = call.input(0)?;
    let dtype = lowering.dtype(x);
    Ok(vec![lowering.pointwise(&call.name, &[x], dtype, |p, args| build(p, dtype, args[0]))?])
}

pub(super) fn unary(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let op = op_of(call)?;
    map(lowering, call, |p, ty, x| {
        p.step(op, ty, &[x]);
    })
}

pub(super) fn binary(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let op = op_of(call)?;
    let inputs = [call.input(0)?, call.input(1)?];
    let ty = same_type(lowering, &inputs)?;
    let dtype = if is_comparison(op) { DType::Bool } else { ty };
    Ok(vec![lowering.pointwise(&call.name, &inputs, dtype, |p, x| {
        p.step(op, ty, x);
    })?])
}

pub(super) fn variadic(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let op = op_of(call)?;
    let inputs = call.all_inputs()?;
    let ty = same_type(lowering, &inputs)?;
    let is_mean = call.node.op_type == "Mean";
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        let first = if x.len() == 1 { p.step(PointOp::Identity, ty, &[x[0]]) } else { x[0] };
        let total = x[1..].iter().fold(first, |a, b| p.step(op, ty, &[a, *b]));
        if is_mean {
            p.step(PointOp::Div, ty, &[total, PointArg::Const(x.len() as f64)]);
        }
    })?])
}

pub(super) fn select(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = [call.input(0)?, call.input(1)?, call.input(2)?];
    if lowering.dtype(inputs[0]) != DType::Bool {
        return invalid("its condition is not Bool");
    }
    let ty = same_type(lowering, &inputs[1..])?;
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        p.step(PointOp::Where, ty, x);
    })?])
}

/// The type in which a power is computed: the wider float of the two; f64 for an integer base with
/// a float exponent; otherwise the type of the base.
fn power_type(base: DType, exponent: DType) -> DType {
    match (is_float(base), is_float(exponent)) {
        (true, true) if exponent.bytes() > base.bytes() => exponent,
        (false, true) => DType::F64,
        _ => base,
    }
}

/// `Pow`. The exponent may have a different type than base and result.
pub(super) fn pow(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (base, exponent) = (call.input(0)?, call.input(1)?);
    let (ty, exponent_ty) = (lowering.dtype(base), lowering.dtype(exponent));
    let compute = power_type(ty, exponent_ty);
    Ok(vec![lowering.pointwise(&call.name, &[base, exponent], ty, |p, x| {
        let cast = |p: &mut ProgramBuilder, from: DType, arg: PointArg| match arg {
            PointArg::Const(_) => arg,
            _ if from == compute => arg,
            _ => p.step(PointOp::Cast, compute, &[arg]),
        };
        let (base, exponent) = (cast(p, ty, x[0]), cast(p, exponent_ty, x[1]));
        // A square becomes a product: exporters compute variances with `Pow`.
        let power = if exponent == PointArg::Const(2.0) {
            p.step(PointOp::Mul, compute, &[base, base])
        } else {
            p.step(PointOp::Pow, compute, &[base, exponent])
        };
        if compute != ty {
            p.step(PointOp::Cast, ty, &[power]);
        }
    })?])
}

/// With `fmod` the result has the sign of the dividend, otherwise that of the divisor.
pub(super) fn modulo(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = [call.input(0)?, call.input(1)?];
    let ty = same_type(lowering, &inputs)?;
    let fmod = call.flag("fmod", false)?;
    if is_float(ty) && !fmod {
        return invalid("its operands are floats, which needs fmod = 1");
    }
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        if fmod && !is_float(ty) {
            let quotient = p.step(PointOp::Div, ty, x);
            let whole = p.step(PointOp::Mul, ty, &[quotient, x[1]]);
            p.step(PointOp::Sub, ty, &[x[0], whole]);
        } else {
            p.step(PointOp::Mod, ty, x);
        }
    })?])
}

pub(super) fn cast(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let to = call.int("to", 0)? as i32;
    let Some(dtype) = input_dtype_of(to) else { return unsupported(format!("a cast to {}", dtype_name(to))) };
    cast_to(lowering, call, dtype)
}

pub(super) fn cast_like(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let dtype = lowering.dtype(call.input(1)?);
    cast_to(lowering, call, dtype)
}

fn cast_to(lowering: &mut Lowering, call: &Call<'_>, dtype: DType) -> Results {
    let x = call.input(0)?;
    match (lowering.has_strings(x), dtype == DType::Strings) {
        (false, false) => converted(lowering, call, dtype),
        (true, true) => Ok(vec![x]),
        (true, false) => strings::parse(lowering, call, dtype),
        (false, true) => strings::write(lowering, call),
    }
}

/// Operand 0 as `dtype`. The attributes of the conversion matter only for narrow floats.
fn converted(lowering: &mut Lowering, call: &Call<'_>, dtype: DType) -> Results {
    let x = call.input(0)?;
    let from = lowering.dtype(x);
    if from == dtype || !is_narrow_float(dtype) {
        return Ok(vec![lowering.cast(&call.name, x, dtype)?]);
    }
    let rounding = Rounding::of(call)?;
    Ok(vec![lowering.pointwise(&call.name, &[x], dtype, |p, x| {
        rounding.convert(p, from, dtype, x[0]);
    })?])
}

/// The bounds are attributes before opset 11 and operands from opset 11 on.
pub(super) fn clip(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    if call.opset < 11 {
        let (low, high) = (call.float("min", f32::MIN)?, call.float("max", f32::MAX)?);
        return map(lowering, call, |p, ty, x| {
            p.step(PointOp::Clip, ty, &[x, PointArg::Const(low.into()), PointArg::Const(high.into())]);
        });
    }
    let bounds = [call.optional(1), call.optional(2)];
    let inputs: Vec<ValueId> = std::iter::once(x).chain(bounds.into_iter().flatten()).collect();
    same_type(lowering, &inputs)?;
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, args| {
        match (bounds[0], bounds[1]) {
            (Some(_), Some(_)) => p.step(PointOp::Clip, ty, args),
            (Some(_), None) => p.step(PointOp::Max, ty, args),
            (None, Some(_)) => p.step(PointOp::Min, ty, args),
            (None, None) => p.step(PointOp::Identity, ty, args),
        };
    })?])
}

/// `x < 0 ? slope * x : x`
pub(super) fn prelu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let inputs = [call.input(0)?, call.input(1)?];
    let ty = same_type(lowering, &inputs)?;
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        let bent = p.step(PointOp::Mul, ty, x);
        let negative = p.step(PointOp::Less, ty, &[x[0], PointArg::Const(0.0)]);
        p.step(PointOp::Where, ty, &[negative, bent, x[0]]);
    })?])
}

pub(super) fn is_nan(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    Ok(vec![lowering.pointwise(&call.name, &[x], DType::Bool, |p, x| {
        let is_itself = p.step(PointOp::Equal, ty, &[x[0], x[0]]);
        p.step(PointOp::Not, DType::Bool, &[is_itself]);
    })?])
}

/// Whether an element is an infinity of a wanted sign.
pub(super) fn is_inf(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    Ok(vec![lowering.pointwise(&call.name, &[x], DType::Bool, |p, x| {
        let infinity = PointArg::Const(f64::INFINITY);
        match (negative, positive) {
            (true, true) => {
                let magnitude = p.step(PointOp::Abs, ty, x);
                p.step(PointOp::Equal, ty, &[magnitude, infinity])
            }
            (true, false) => p.step(PointOp::Equal, ty, &[x[0], PointArg::Const(f64::NEG_INFINITY)]),
            (false, true) => p.step(PointOp::Equal, ty, &[x[0], infinity]),
            // Always false: no value is less than itself.
            (false, false) => p.step(PointOp::Less, ty, &[x[0], x[0]]),
        };
    })?])
}

pub(super) fn bit_shift(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let op = match call.string("direction", "")?.as_str() {
        "LEFT" => PointOp::ShiftLeft,
        "RIGHT" => PointOp::ShiftRight,
        other => return invalid(format!("its attribute direction is {other:?}, which ONNX does not define")),
    };
    let inputs = [call.input(0)?, call.input(1)?];
    let ty = same_type(lowering, &inputs)?;
    if !matches!(ty, DType::U8 | DType::U16 | DType::U32 | DType::U64) {
        return invalid(format!("its operands have type {ty:?}; they must be unsigned integers"));
    }
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        p.step(op, ty, x);
    })?])
}

/// Reinterprets the bits as another type of the same width.
pub(super) fn bit_cast(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, to) = (call.input(0)?, call.int("to", 0)? as i32);
    let Some(dtype) = stored_dtype_of(to) else { return unsupported(format!("a cast to {}", dtype_name(to))) };
    if lowering.dtype(x).bits() != dtype.bits() {
        return invalid(format!("it casts the bits of {:?} to {dtype:?}, which has another width", lowering.dtype(x)));
    }
    if lowering.dtype(x) == dtype {
        return Ok(vec![x]);
    }
    Ok(vec![lowering.pointwise(&call.name, &[x], dtype, |p, x| {
        p.step(PointOp::BitCast, dtype, x);
    })?])
}
