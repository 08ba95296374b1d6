//! Normalisation operators.

use super::super::call::{Call, axes_of, axis_of};
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use crate::size::elements;
use crate::tensor_graph::{Op, PointArg, PointOp, Pool, PoolKind, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The shape `[1, C, 1, …]` of `rank` dimensions.
pub(super) fn per_channel(channels: Expr, rank: usize) -> Vec<Expr> {
    (0..rank).map(|i| if i == 1 { channels.clone() } else { Expr::Const(1) }).collect()
}

/// The moments of an operand over some axes, which are kept with extent 1.
pub(super) struct Moments {
    pub(super) mean: ValueId,
    /// The operand minus its mean.
    pub(super) centred: ValueId,
    /// The mean of `centred` squared.
    pub(super) variance: ValueId,
}

pub(super) fn moments(lowering: &mut Lowering, name: &str, x: ValueId, axes: Vec<usize>) -> LowerResult<Moments> {
    let ty = lowering.dtype(x);
    let mean = reduced(lowering, &format!("{name}.mean"), x, ReduceKind::Mean, axes.clone())?;
    let centred = lowering.pointwise(&format!("{name}.centred"), &[x, mean], ty, |p, x| {
        p.step(PointOp::Sub, ty, x);
    })?;
    let square = lowering.pointwise(&format!("{name}.square"), &[centred], ty, |p, x| {
        p.step(PointOp::Mul, ty, &[x[0], x[0]]);
    })?;
    let variance = reduced(lowering, &format!("{name}.variance"), square, ReduceKind::Mean, axes)?;
    Ok(Moments { mean, centred, variance })
}

/// A reduction that keeps its axes with extent 1.
pub(super) fn reduced(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    kind: ReduceKind,
    axes: Vec<usize>,
) -> LowerResult<ValueId> {
    let dims = lowering.shape(x).iter().enumerate();
    let shape = dims.map(|(axis, dim)| if axes.contains(&axis) { Expr::Const(1) } else { dim.clone() }).collect();
    let op = Op::Reduce(Reduce { kind, axes, keep_dims: true });
    lowering.emit_one(name, op, &[x], lowering.dtype(x), shape)
}

/// `1 / sqrt(x + epsilon)`
fn inverse_root(lowering: &mut Lowering, name: &str, x: ValueId, epsilon: f32) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    lowering.pointwise(name, &[x], ty, |p, x| {
        let raised = p.step(PointOp::Add, ty, &[x[0], PointArg::Const(epsilon.into())]);
        let root = p.step(PointOp::Sqrt, ty, &[raised]);
        p.step(PointOp::Reciprocal, ty, &[root]);
    })
}

/// The type in which statistics are computed: F64 for F64, otherwise F32.
pub(super) fn statistics_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Normalises each channel of each image.
pub(super) fn instance_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    if shape.len() < 3 {
        return invalid("its operand has no spatial dimensions");
    }
    let rows = vec![shape[0].clone(), shape[1].clone(), elements(&shape[2..])];
    let normal = normalize_rows(lowering, call, x, rows)?;
    let affine = per_channel(shape[1].clone(), shape.len());
    let normal = lowering.reshape(&format!("{}.unrolled", call.name), normal, shape)?;
    Ok(vec![scale_and_shift(lowering, call, normal, affine)?])
}

/// Normalises groups of channels of each image. Scale and bias are per group before opset 21, and
/// per channel from opset 21 on.
pub(super) fn group_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    if shape.len() < 3 {
        return invalid("its operand has no spatial dimensions");
    }
    let groups = call.int("num_groups", 0)?;
    if groups < 1 {
        let channels = lowering.text(&shape[1]);
        return invalid(format!("its {channels} channels cannot be divided into {groups} groups"));
    }
    let per_group = lowering.divided(&shape[1], &Expr::Const(groups))?;
    let rows = vec![shape[0].clone(), Expr::Const(groups), elements(&shape[2..]) * per_group];
    let normal = normalize_rows(lowering, call, x, rows)?;
    let unrolled = format!("{}.unrolled", call.name);
    if call.opset < 21 {
        let scaled = scale_and_shift(lowering, call, normal, per_channel(Expr::Const(groups), 3))?;
        return Ok(vec![lowering.reshape(&unrolled, scaled, shape)?]);
    }
    let affine = per_channel(shape[1].clone(), shape.len());
    let normal = lowering.reshape(&unrolled, normal, shape)?;
    Ok(vec![scale_and_shift(lowering, call, normal, affine)?])
}

/// Reshapes `x` to `[_, _, row]` and normalises each row to mean 0 and variance 1. If the length of
/// a row is a number, this is a layer normalisation without parameters.
fn normalize_rows(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, rows: Vec<Expr>) -> LowerResult<ValueId> {
    let epsilon = call.float("epsilon", 1e-5)?;
    let dtype = lowering.dtype(x);
    let x = lowering.reshape(&format!("{}.rows", call.name), x, rows.clone())?;
    if rows[2].as_const().is_none() || dtype == DType::F64 {
        return normalize(lowering, &call.name, x, vec![2], epsilon);
    }
    let one = lowering.fill(&format!("{}.one", call.name), dtype, vec![rows[2].clone()], 1.0)?;
    lowering.emit_one(&format!("{}.normal", call.name), Op::LayerNorm { axis: 2, epsilon }, &[x, one], dtype, rows)
}

/// Normalises to mean 0 and variance 1 over some axes, by reductions.
fn normalize(lowering: &mut Lowering, name: &str, x: ValueId, axes: Vec<usize>, epsilon: f32) -> LowerResult<ValueId> {
    let (dtype, ty) = (lowering.dtype(x), statistics_type(lowering.dtype(x)));
    let x = lowering.cast(&format!("{name}.wide"), x, ty)?;
    let Moments { centred, variance, .. } = moments(lowering, name, x, axes)?;
    let factor = inverse_root(lowering, &format!("{name}.factor"), variance, epsilon)?;
    let y = lowering.pointwise(&format!("{name}.normal"), &[centred, factor], ty, |p, x| {
        p.step(PointOp::Mul, ty, x);
    })?;
    lowering.cast(&format!("{name}.narrow"), y, dtype)
}

/// `x * scale + bias`; operands 1 and 2 are reshaped to `affine`.
fn scale_and_shift(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, affine: Vec<Expr>) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(x);
    let scale = lowering.reshape(&format!("{}.scale", call.name), call.input(1)?, affine.clone())?;
    let bias = lowering.reshape(&format!("{}.bias", call.name), call.input(2)?, affine)?;
    lowering.pointwise(&call.name, &[x, scale, bias], dtype, |p, x| {
        let scaled = p.step(PointOp::Mul, dtype, &[x[0], x[1]]);
        p.step(PointOp::Add, dtype, &[scaled, x[2]]);
    })
}

/// Broadcasts a scale or bias to the shape of a row.
fn of_row(lowering: &mut Lowering, name: &str, operand: ValueId, row: &[Expr]) -> LowerResult<ValueId> {
    let fits = lowering.rank(operand) <= row.len() && lowering.broadcast_shapes(row, lowering.shape(operand))? == row;
    if fits { lowering.expand(name, operand, row.to_vec()) } else { lowering.reshape(name, operand, row.to_vec()) }
}

/// Results: the normalised operand and, if they are used, its mean and the inverse standard
/// deviation.
pub(super) fn layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let axis = axis_of(call.int("axis", -1)?, shape.len())?;
    let axes: Vec<usize> = (axis..shape.len()).collect();
    let epsilon = call.float("epsilon", 1e-5)?;
    let mut inputs = vec![x];
    for (index, suffix) in [(1, "scale"), (2, "bias")] {
        let Some(operand) = call.optional(index) else { continue };
        inputs.push(of_row(lowering, &format!("{}.{suffix}", call.name), operand, &shape[axis..])?);
    }
    if inputs.len() < 2 {
        return invalid("its scale is missing");
    }
    let y = if dtype == DType::F64 {
        let normal = normalize(lowering, &call.name, x, axes.clone(), epsilon)?;
        lowering.pointwise(&call.name, &[&[normal], &inputs[1..]].concat(), dtype, |p, x| {
            let scaled = p.step(PointOp::Mul, dtype, &x[..2]);
            if let Some(bias) = x.get(2) {
                p.step(PointOp::Add, dtype, &[scaled, *bias]);
            }
        })?
    } else {
        lowering.emit_one(&call.name, Op::LayerNorm { axis, epsilon }, &inputs, dtype, shape)?
    };
    if call.node.output.iter().skip(1).all(String::is_empty) {
        return Ok(vec![y]);
    }
    let wide = lowering.cast(&format!("{}.wide", call.name), x, statistics_type(dtype))?;
    let Moments { mean, variance, .. } = moments(lowering, &format!("{}.moments", call.name), wide, axes)?;
    let inverse = inverse_root(lowering, &format!("{}.inverse", call.name), variance, epsilon)?;
    Ok(vec![y, mean, inverse])
}

/// `x / sqrt(mean(x^2) + epsilon) * scale` over the axes from `axis` on.
pub(super) fn rms_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let axis = axis_of(call.int("axis", -1)?, shape.len())?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let scale = of_row(lowering, &format!("{}.scale", call.name), call.input(1)?, &shape[axis..])?;
    let ty = statistics_type(dtype);
    let wide = lowering.cast(&format!("{}.wide", call.name), x, ty)?;
    let square = lowering.pointwise(&format!("{}.square", call.name), &[wide], ty, |p, x| {
        p.step(PointOp::Mul, ty, &[x[0], x[0]]);
    })?;
    let mean =
        reduced(lowering, &format!("{}.mean", call.name), square, ReduceKind::Mean, (axis..shape.len()).collect())?;
    let factor = inverse_root(lowering, &format!("{}.factor", call.name), mean, epsilon)?;
    let scale_ty = lowering.dtype(scale);
    Ok(vec![lowering.pointwise(&call.name, &[wide, factor, scale], scale_ty, |p, x| {
        let normal = p.step(PointOp::Mul, ty, &x[..2]);
        let normal = if ty == scale_ty { normal } else { p.step(PointOp::Cast, scale_ty, &[normal]) };
        p.step(PointOp::Mul, scale_ty, &[normal, x[2]]);
    })?])
}

/// `(x - mean) / (deviation + 1e-9)` over `axes`.
pub(super) fn mean_variance_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, ty) = (lowering.dtype(x), statistics_type(lowering.dtype(x)));
    let axes = axes_of(&call.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]), lowering.rank(x))?;
    let wide = lowering.cast(&format!("{}.wide", call.name), x, ty)?;
    let Moments { centred, variance, .. } = moments(lowering, &call.name, wide, axes)?;
    Ok(vec![lowering.pointwise(&call.name, &[centred, variance], dtype, |p, x| {
        let deviation = p.step(PointOp::Sqrt, ty, &[x[1]]);
        let divisor = p.step(PointOp::Add, ty, &[deviation, PointArg::Const(1e-9)]);
        let quotient = p.step(PointOp::Div, ty, &[x[0], divisor]);
        if ty != dtype {
            p.step(PointOp::Cast, dtype, &[quotient]);
        }
    })?])
}

pub(super) fn lp_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let ty = lowering.dtype(x);
    let axis = axis_of(call.int("axis", -1)?, lowering.rank(x))?;
    let kind = match call.int("p", 2)? {
        2 => ReduceKind::L2,
        1 => ReduceKind::Sum,
        p => return invalid(format!("its p is {p}; it must be 1 or 2")),
    };
    let source = if kind == ReduceKind::L2 {
        x
    } else {
        lowering.pointwise(&format!("{}.abs", call.name), &[x], ty, |p, x| {
            p.step(PointOp::Abs, ty, x);
        })?
    };
    let norm = reduced(lowering, &format!("{}.norm", call.name), source, kind, vec![axis])?;
    let y = lowering.pointwise(&call.name, &[x, norm], ty, |p, x| {
        // A row of zeros stays zero.
        let is_zero = p.step(PointOp::Equal, ty, &[x[1], PointArg::Const(0.0)]);
        let divisor = p.step(PointOp::Where, ty, &[is_zero, PointArg::Const(1.0), x[1]]);
        p.step(PointOp::Div, ty, &[x[0], divisor]);
    })?;
    Ok(vec![y])
}

/// Computes the sum over neighbouring channels as an average pooling over `[N, 1, C, H*W]` that
/// counts padding.
pub(super) fn local_response_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let size = call.int("size", 0)?;
    let (alpha, beta, bias) = (call.float("alpha", 1e-4)?, call.float("beta", 0.75)?, call.float("bias", 1.0)?);
    if shape.len() < 2 || !(1..=1 << 16).contains(&size) {
        return invalid(format!(
            "its size is {size} and its operand has {} dimensions; it needs a size of 1 to 65536 and 2 dimensions",
            shape.len()
        ));
    }
    let square = lowering.pointwise(&format!("{}.square", call.name), &[x], ty, |p, x| {
        p.step(PointOp::Mul, ty, &[x[0], x[0]]);
    })?;
    let planes = vec![shape[0].clone(), Expr::Const(1), shape[1].clone(), elements(&shape[2..])];
    let square = lowering.reshape(&format!("{}.planes", call.name), square, planes.clone())?;
    let pool = Pool {
        kind: PoolKind::Average { count_include_pad: true },
        window: [size as u32, 1],
        strides: [1, 1],
        pads: [(size - 1) as u32 / 2, 0, (size as u32) / 2, 0],
        dilations: [1, 1],
    };
    let average = lowering.emit_one(&format!("{}.average", call.name), Op::Pool(pool), &[square], ty, planes)?;
    let average = lowering.reshape(&format!("{}.unrolled", call.name), average, shape)?;
    let y = lowering.pointwise(&call.name, &[x, average], ty, |p, x| {
        let scaled = p.step(PointOp::Mul, ty, &[x[1], PointArg::Const(alpha.into())]);
        let raised = p.step(PointOp::Add, ty, &[scaled, PointArg::Const(bias.into())]);
        let divisor = p.step(PointOp::Pow, ty, &[raised, PointArg::Const(beta.into())]);
        p.step(PointOp::Div, ty, &[x[0], divisor]);
    })?;
    Ok(vec![y])
}
