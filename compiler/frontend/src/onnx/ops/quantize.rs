//! Quantisation: an integer `x` represents the number `(x - zero point) * scale`.
//!
//! Products are exact, in 32-bit integers. Scaling is in f32 (f64 for an f64 operand), rounding is
//! to nearest even, and results are clipped to their type.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::read::{dtype_name, stored_dtype_of};
use super::narrow::Rounding;
use crate::program::ProgramBuilder;
use crate::tensor::{int_bounds, is_narrow_float};
use crate::tensor_graph::{Op, PointArg, PointOp, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Reshapes a scale or zero point (per tensor, per axis, or per block along the axis) to a shape
/// that broadcasts to the tensor's.
fn parameter(lowering: &mut Lowering, call: &Call<'_>, index: usize, shape: &[Expr]) -> LowerResult<Option<ValueId>> {
    let Some(id) = call.optional(index) else { return Ok(None) };
    let name = format!("{}.{index}", call.name);
    let (rank, own) = (shape.len(), lowering.shape(id).to_vec());
    if own.iter().all(|d| *d == Expr::Const(1)) && (own.len() <= 1 || call.int("block_size", 0)? == 0) {
        return Ok(Some(lowering.reshape(&name, id, vec![])?));
    }
    let axis = axis_of(call.int("axis", 1)?, rank)?;
    if own.len() == 1 {
        let mut spread = vec![Expr::Const(1); rank];
        spread[axis].clone_from(&own[0]);
        return Ok(Some(lowering.reshape(&name, id, spread)?));
    }
    let block = call.int("block_size", 0)?;
    if own.len() != rank || block < 1 {
        return invalid(format!(
            "its operand {index} has {} dimensions for a tensor of {rank}, with block_size {block}",
            own.len()
        ));
    }
    let between = |size: Expr| [&own[..=axis], &[size], &own[axis + 1..]].concat();
    let apart = lowering.reshape(&format!("{name}.apart"), id, between(Expr::Const(1)))?;
    let repeated = lowering.expand(&format!("{name}.repeated"), apart, between(Expr::Const(block)))?;
    let mut long = own.clone();
    long[axis] = own[axis].clone() * block;
    let joined = lowering.reshape(&format!("{name}.joined"), repeated, long.clone())?;
    if lowering.shape(joined)[axis] == shape[axis] {
        return Ok(Some(joined));
    }
    long[axis].clone_from(&shape[axis]);
    let op = Op::Slice { starts: vec![Expr::Const(0); rank], steps: vec![1; rank] };
    Ok(Some(lowering.emit_one(&format!("{name}.part"), op, &[joined], lowering.dtype(id), long)?))
}

fn cast_step(p: &mut ProgramBuilder, from: DType, to: DType, x: PointArg) -> PointArg {
    match x {
        PointArg::Const(_) => x,
        _ if from == to => x,
        _ => p.step(PointOp::Cast, to, &[x]),
    }
}

/// The type in which elements of `dtype` are scaled.
fn scaling_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The type of the attribute `output_dtype`, if it is given.
fn output_type(call: &Call<'_>) -> LowerResult<Option<DType>> {
    match call.int("output_dtype", 0)? as i32 {
        0 => Ok(None),
        number => match stored_dtype_of(number) {
            Some(dtype) => Ok(Some(dtype)),
            None => unsupported(format!("a result of type {}", dtype_name(number))),
        },
    }
}

/// `(x - zero point) * scale`
pub(super) fn dequantize_linear(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let scale =
        parameter(lowering, call, 1, &shape)?.ok_or_else(|| LowerError::Invalid("its scale is missing".into()))?;
    let scale_ty = lowering.dtype(scale);
    let result = output_type(call)?.unwrap_or(scale_ty);
    if result.is_narrow() {
        return unsupported(format!("a result of type {result}, in which no kernel computes"));
    }
    let ty = scaling_type(scale_ty);
    let zero = parameter(lowering, call, 2, &shape)?;
    let inputs: Vec<ValueId> = [x, scale].into_iter().chain(zero).collect();
    Ok(vec![lowering.pointwise(&call.name, &inputs, result, |p, x| {
        // Differences of narrow floats are floats as well; those of integers fit into 32 bits.
        let exact = if crate::tensor::is_float(dtype) { ty } else { DType::I32 };
        let mut value = cast_step(p, dtype, exact, x[0]);
        if let Some(zero) = x.get(2) {
            let zero = cast_step(p, dtype, exact, *zero);
            value = p.step(PointOp::Sub, exact, &[value, zero]);
        }
        let value = cast_step(p, exact, ty, value);
        let scale = cast_step(p, scale_ty, ty, x[1]);
        let product = p.step(PointOp::Mul, ty, &[value, scale]);
        if result != ty {
            p.step(PointOp::Cast, result, &[product]);
        }
    })?])
}

/// `saturate(round(scaled) + zero)` converted to `to`; the last step of a program that computes in
/// `ty`.
fn saturated(p: &mut ProgramBuilder, ty: DType, to: DType, scaled: PointArg, zero: Option<PointArg>) -> PointArg {
    let (low, high) = int_bounds(to);
    let mut value = p.step(PointOp::Round, ty, &[scaled]);
    if let Some(zero) = zero {
        let zero = cast_step(p, to, ty, zero);
        value = p.step(PointOp::Add, ty, &[value, zero]);
    }
    let value = p.step(PointOp::Clip, ty, &[value, PointArg::Const(low as f64), PointArg::Const(high as f64)]);
    p.step(PointOp::Cast, to, &[value])
}

/// Returns the type; an error if numbers cannot be quantised to it.
fn quantised(dtype: DType) -> LowerResult<DType> {
    match dtype {
        DType::U8 | DType::I8 | DType::U16 | DType::I16 => Ok(dtype),
        narrow if narrow.is_narrow() && narrow != DType::F8e8m0 => Ok(narrow),
        other => unsupported(format!(
            "quantisation to {other:?}; integers of up to 16 bits and narrow floats with a sign are supported"
        )),
    }
}

/// Returns the type; an error if it is not an integer to which numbers can be quantised.
fn quantised_integer(dtype: DType) -> LowerResult<DType> {
    match quantised(dtype)? {
        narrow if narrow.is_narrow() => unsupported(format!("a result of type {narrow}")),
        integer => Ok(integer),
    }
}

pub(super) fn quantize_linear(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let scale =
        parameter(lowering, call, 1, &shape)?.ok_or_else(|| LowerError::Invalid("its scale is missing".into()))?;
    let zero = parameter(lowering, call, 2, &shape)?;
    let result = match (zero, output_type(call)?) {
        (Some(zero), _) => lowering.dtype(zero),
        (None, Some(dtype)) => dtype,
        (None, None) => DType::U8,
    };
    let result = quantised(result)?;
    let (scale_ty, ty, rounding) = (lowering.dtype(scale), scaling_type(dtype), Rounding::of(call)?);
    let inputs: Vec<ValueId> = [x, scale].into_iter().chain(zero).collect();
    Ok(vec![lowering.pointwise(&call.name, &inputs, result, |p, x| {
        let value = cast_step(p, dtype, ty, x[0]);
        let scale = cast_step(p, scale_ty, ty, x[1]);
        let scaled = p.step(PointOp::Div, ty, &[value, scale]);
        match x.get(2) {
            zero if !is_narrow_float(result) => saturated(p, ty, result, scaled, zero.copied()),
            Some(zero) => {
                let zero = cast_step(p, result, ty, *zero);
                let sum = p.step(PointOp::Add, ty, &[scaled, zero]);
                rounding.convert(p, ty, result, sum)
            }
            None => rounding.convert(p, ty, result, scaled),
        };
    })?])
}

/// Quantises the operand to U8 by its own range, extended to contain 0. Results: the quantised
/// operand, its scale and its zero point.
pub(super) fn dynamic_quantize_linear(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, rank) = (lowering.dtype(x), lowering.rank(x));
    let mut bounds = Vec::with_capacity(2);
    for (part, kind) in [("min", ReduceKind::Min), ("max", ReduceKind::Max)] {
        let op = Op::Reduce(Reduce { kind, axes: (0..rank).collect(), keep_dims: false });
        bounds.push(lowering.emit_one(&format!("{}.{part}", call.name), op, &[x], ty, vec![])?);
    }
    let number = PointArg::Const;
    let scale = lowering.pointwise(&format!("{}.scale", call.name), &bounds, ty, |p, x| {
        let low = p.step(PointOp::Min, ty, &[x[0], number(0.0)]);
        let high = p.step(PointOp::Max, ty, &[x[1], number(0.0)]);
        let range = p.step(PointOp::Sub, ty, &[high, low]);
        let scale = p.step(PointOp::Div, ty, &[range, number(255.0)]);
        // For a tensor of zeros any scale is valid.
        let is_zero = p.step(PointOp::Equal, ty, &[range, number(0.0)]);
        p.step(PointOp::Where, ty, &[is_zero, number(1.0), scale]);
    })?;
    let zero = lowering.pointwise(&format!("{}.zero", call.name), &[bounds[0], scale], DType::U8, |p, x| {
        let low = p.step(PointOp::Min, ty, &[x[0], number(0.0)]);
        let scaled = p.step(PointOp::Div, ty, &[low, x[1]]);
        let negated = p.step(PointOp::Neg, ty, &[scaled]);
        saturated(p, ty, DType::U8, negated, None);
    })?;
    let y = lowering.pointwise(&call.name, &[x, scale, zero], DType::U8, |p, x| {
        let scaled = p.step(PointOp::Div, ty, &x[..2]);
        saturated(p, ty, DType::U8, scaled, Some(x[2]));
    })?;
    Ok(vec![y, scale, zero])
}

/// A quantised operand minus its zero point, as I32.
fn difference(lowering: &mut Lowering, name: &str, x: ValueId, zero: Option<ValueId>) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    if !matches!(dtype, DType::U8 | DType::I8) {
        return invalid(format!("its quantised operand has type {dtype:?}; it must be U8 or I8"));
    }
    let inputs: Vec<ValueId> = std::iter::once(x).chain(zero).collect();
    lowering.pointwise(name, &inputs, DType::I32, |p, x| {
        let value = cast_step(p, dtype, DType::I32, x[0]);
        if let Some(zero) = x.get(1) {
            let zero = cast_step(p, dtype, DType::I32, *zero);
            p.step(PointOp::Sub, DType::I32, &[value, zero]);
        }
    })
}

/// A parameter per row (`is_rows`) or per column of a matrix, reshaped to broadcast to the
/// matrices. A scalar, or a tensor of more dimensions, is unchanged.
fn per_line(lowering: &mut Lowering, name: &str, id: ValueId, is_rows: bool) -> LowerResult<ValueId> {
    match lowering.shape(id) {
        [one] if *one == Expr::Const(1) => lowering.reshape(name, id, vec![]),
        [count] if is_rows => {
            let shape = vec![count.clone(), Expr::Const(1)];
            lowering.reshape(name, id, shape)
        }
        _ => Ok(id),
    }
}

/// The product of two quantised matrices, as I32. `places` are the operand indices of a, its zero
/// point, b, its zero point.
fn product(lowering: &mut Lowering, call: &Call<'_>, places: [usize; 4]) -> LowerResult<ValueId> {
    let mut operands = Vec::with_capacity(2);
    for (at, (x, zero)) in [(places[0], places[1]), (places[2], places[3])].into_iter().enumerate() {
        let name = format!("{}.{}", call.name, if at == 0 { "a" } else { "b" });
        let zero =
            call.optional(zero).map(|zero| per_line(lowering, &format!("{name}.zero"), zero, at == 0)).transpose()?;
        operands.push(difference(lowering, &name, call.input(x)?, zero)?);
    }
    super::matmul::product(lowering, &format!("{}.product", call.name), operands[0], operands[1])
}

pub(super) fn matmul_integer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    Ok(vec![product(lowering, call, [0, 2, 1, 3])?])
}

/// Operands: a, its scale and zero point, b, its scale and zero point, the result's scale and zero
/// point.
pub(super) fn qlinear_matmul(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let product = product(lowering, call, [0, 2, 3, 5])?;
    let a_scale = per_line(lowering, &format!("{}.a.scale", call.name), call.input(1)?, true)?;
    let b_scale = per_line(lowering, &format!("{}.b.scale", call.name), call.input(4)?, false)?;
    let scales = [a_scale, b_scale, call.input(6)?];
    Ok(vec![requantized(lowering, &call.name, product, scales, call.input(7)?)?])
}

/// Scales sums of products to the result's scale and zero point.
fn requantized(
    lowering: &mut Lowering,
    name: &str,
    sums: ValueId,
    scales: [ValueId; 3],
    zero: ValueId,
) -> LowerResult<ValueId> {
    let ty = DType::F32;
    let result = quantised_integer(lowering.dtype(zero))?;
    let mut wide = Vec::with_capacity(3);
    for (at, scale) in scales.into_iter().enumerate() {
        wide.push(lowering.cast(&format!("{name}.scale{at}"), scale, ty)?);
    }
    let factor = lowering.pointwise(&format!("{name}.factor"), &wide, ty, |p, x| {
        let product = p.step(PointOp::Mul, ty, &x[..2]);
        p.step(PointOp::Div, ty, &[product, x[2]]);
    })?;
    lowering.pointwise(name, &[sums, factor, zero], result, |p, x| {
        let value = p.step(PointOp::Cast, ty, &[x[0]]);
        let scaled = p.step(PointOp::Mul, ty, &[value, x[1]]);
        saturated(p, ty, result, scaled, Some(x[2]));
    })
}

/// A parameter per filter, reshaped to `rank` dimensions with the filters on `axis`. A parameter
/// with one element becomes a scalar. It is an error if there is no such axis.
fn per_filter(lowering: &mut Lowering, name: &str, id: ValueId, rank: usize, axis: usize) -> LowerResult<ValueId> {
    let own = lowering.shape(id).to_vec();
    let mut shape = Vec::new();
    if own.iter().any(|d| *d != Expr::Const(1)) {
        if axis >= rank {
            return invalid(format!("its weights have {rank} dimensions; those of a convolution have at least 3"));
        }
        shape = vec![Expr::Const(1); rank];
        shape[axis].clone_from(&own[0]);
    }
    lowering.reshape(name, id, shape)
}

/// The convolution of operand 0 and operand `weights`, minus their zero points, as I32. `zeros` are
/// the operand indices of the zero points.
fn convolution(
    lowering: &mut Lowering,
    call: &Call<'_>,
    weights: usize,
    zeros: [usize; 2],
    bias: Option<ValueId>,
) -> LowerResult<ValueId> {
    let (x, w) = (call.input(0)?, call.input(weights)?);
    let rank = lowering.rank(w);
    let x_zero = call
        .optional(zeros[0])
        .map(|zero| per_filter(lowering, &format!("{}.x.zero", call.name), zero, rank, 1))
        .transpose()?;
    let w_zero = call
        .optional(zeros[1])
        .map(|zero| per_filter(lowering, &format!("{}.w.zero", call.name), zero, rank, 0))
        .transpose()?;
    let x = difference(lowering, &format!("{}.x", call.name), x, x_zero)?;
    let w = difference(lowering, &format!("{}.w", call.name), w, w_zero)?;
    // Padding represents the zero point, which is 0 after the subtraction.
    super::conv::convolved(lowering, call, x, w, bias)
}

pub(super) fn conv_integer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    Ok(vec![convolution(lowering, call, 1, [2, 3], None)?])
}

/// Operands: x, its scale and zero point, the weights, their scales and zero points, the result's
/// scale and zero point, optionally an I32 bias.
pub(super) fn qlinear_conv(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let sums = convolution(lowering, call, 3, [2, 5], call.optional(8))?;
    let rank = lowering.rank(sums);
    let scale = per_filter(lowering, &format!("{}.w.scale", call.name), call.input(4)?, rank, 1)?;
    let scales = [call.input(1)?, scale, call.input(6)?];
    Ok(vec![requantized(lowering, &call.name, sums, scales, call.input(7)?)?])
}
