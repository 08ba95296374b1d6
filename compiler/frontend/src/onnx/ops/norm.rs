//! Normalisations and softmax.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::size::elements;
use crate::tensor::Tensor;
use crate::tensor_graph::{Op, PointArg, PointOp, Pool, PoolKind, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// `[1, C, 1, …]` for a tensor of `rank` dimensions.
fn per_channel(channels: Expr, rank: usize) -> Vec<Expr> {
    (0..rank).map(|i| if i == 1 { channels.clone() } else { Expr::Const(1) }).collect()
}

/// At inference `x * scale + shift`, with both computed at compile time where the statistics are constants.
pub(super) fn batch_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.flag("training_mode", false)? {
        return unsupported("training_mode = 1; export the model in evaluation mode");
    }
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    if rank < 2 {
        return invalid(format!("a tensor of {rank} dimensions has no channels"));
    }
    let epsilon = f64::from(call.float("epsilon", 1e-5)?);
    let dtype = lowering.dtype(x);
    let shape = per_channel(lowering.shape(x)[1].clone(), rank);
    let mut operands = Vec::with_capacity(4);
    for index in 1..5 {
        let operand = lowering.reshape(&format!("{}.{index}", call.name), call.input(index)?, shape.clone())?;
        operands.push(lowering.cast(&format!("{}.{index}", call.name), operand, dtype)?);
    }
    let tensors: Option<Vec<Tensor>> = operands.iter().map(|id| lowering.tensor(*id)).collect();
    let (scale, shift) = match tensors {
        Some(tensors) => constant_affine(lowering, call, &tensors, epsilon),
        None => computed_affine(lowering, call, &operands, dtype, epsilon)?,
    };
    let y = lowering.pointwise(&call.name, &[x, scale, shift], dtype, |p, x| {
        let scaled = p.step(PointOp::Mul, dtype, &[x[0], x[1]]);
        p.step(PointOp::Add, dtype, &[scaled, x[2]]);
    })?;
    Ok(vec![y])
}

/// Scale and shift from the constants scale, bias, mean and variance; in double precision, rounded once.
fn constant_affine(lowering: &mut Lowering, call: &Call<'_>, tensors: &[Tensor], epsilon: f64) -> (ValueId, ValueId) {
    let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|i| tensors[i].to_f64());
    let factors: Vec<f64> = scale.iter().zip(&variance).map(|(s, v)| s / (v + epsilon).sqrt()).collect();
    let shifts: Vec<f64> = bias.iter().zip(&mean).zip(&factors).map(|((b, m), f)| b - m * f).collect();
    let mut constant = |suffix: &str, values: Vec<f64>| {
        let tensor = Tensor::floats(tensors[0].dtype, tensors[0].shape.clone(), values);
        lowering.constant(&format!("{}.{suffix}", call.name), &tensor)
    };
    (constant("scale", factors), constant("shift", shifts))
}

fn computed_affine(
    lowering: &mut Lowering,
    call: &Call<'_>,
    operands: &[ValueId],
    ty: DType,
    epsilon: f64,
) -> LowerResult<(ValueId, ValueId)> {
    let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|i| operands[i]);
    let factor = lowering.pointwise(&format!("{}.scale", call.name), &[scale, variance], ty, |p, x| {
        let raised = p.step(PointOp::Add, ty, &[x[1], PointArg::Const(epsilon)]);
        let deviation = p.step(PointOp::Sqrt, ty, &[raised]);
        p.step(PointOp::Div, ty, &[x[0], deviation]);
    })?;
    let shift = lowering.pointwise(&format!("{}.shift", call.name), &[bias, mean, factor], ty, |p, x| {
        let moved = p.step(PointOp::Mul, ty, &[x[1], x[2]]);
        p.step(PointOp::Sub, ty, &[x[0], moved]);
    })?;
    Ok((factor, shift))
}

/// Each channel of each image on its own: rows of a layer normalisation without parameters, then scale and bias.
pub(super) fn instance_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    if shape.len() < 3 {
        return invalid("no spatial dimensions");
    }
    let rows = vec![shape[0].clone(), shape[1].clone(), elements(&shape[2..])];
    let normal = normalize_rows(lowering, call, x, rows)?;
    let affine = per_channel(shape[1].clone(), shape.len());
    scale_and_shift(lowering, call, normal, shape, affine)
}

/// Groups of channels of each image on their own.
pub(super) fn group_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    if shape.len() < 3 {
        return invalid("no spatial dimensions");
    }
    let groups = call.int("num_groups", 0)?;
    let Some(per_group) = shape[1].as_const().filter(|c| groups > 0 && c % groups == 0).map(|c| c / groups) else {
        return invalid(format!("{} channels in {groups} groups", shape[1]));
    };
    let rows = vec![shape[0].clone(), Expr::Const(groups), elements(&shape[2..]) * per_group];
    let normal = normalize_rows(lowering, call, x, rows)?;
    let affine = per_channel(shape[1].clone(), shape.len());
    if lowering.shape(call.input(1)?).first() != Some(&shape[1]) {
        return unsupported("scale and bias per group (opset 18 to 20); convert the model to opset 21");
    }
    scale_and_shift(lowering, call, normal, shape, affine)
}

/// `x` as `[_, _, row]`, each row with mean 0 and variance 1.
fn normalize_rows(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, rows: Vec<Expr>) -> LowerResult<ValueId> {
    let epsilon = call.float("epsilon", 1e-5)?;
    let dtype = lowering.dtype(x);
    let x = lowering.reshape(&format!("{}.rows", call.name), x, rows.clone())?;
    if rows[2].as_const().is_none() {
        return unsupported("a symbolic number of elements per normalised row");
    }
    let one = lowering.fill(&format!("{}.one", call.name), dtype, vec![rows[2].clone()], 1.0)?;
    lowering.emit_one(&format!("{}.normal", call.name), Op::LayerNorm { axis: 2, epsilon }, &[x, one], dtype, rows)
}

fn scale_and_shift(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, shape: Vec<Expr>, affine: Vec<Expr>) -> Results {
    let dtype = lowering.dtype(x);
    let x = lowering.reshape(&format!("{}.unrolled", call.name), x, shape)?;
    let scale = lowering.reshape(&format!("{}.scale", call.name), call.input(1)?, affine.clone())?;
    let bias = lowering.reshape(&format!("{}.bias", call.name), call.input(2)?, affine)?;
    let y = lowering.pointwise(&call.name, &[x, scale, bias], dtype, |p, x| {
        let scaled = p.step(PointOp::Mul, dtype, &[x[0], x[1]]);
        p.step(PointOp::Add, dtype, &[scaled, x[2]]);
    })?;
    Ok(vec![y])
}

pub(super) fn layer_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(call.int("axis", -1)?, shape.len())?;
    let epsilon = call.float("epsilon", 1e-5)?;
    let row = shape[axis..].to_vec();
    let mut inputs = vec![x];
    for (index, suffix) in [(1, "scale"), (2, "bias")] {
        let Some(operand) = call.optional(index) else { continue };
        let name = format!("{}.{suffix}", call.name);
        let fits = lowering.rank(operand) <= row.len() && lowering.broadcast_shapes(&row, lowering.shape(operand))? == row;
        inputs.push(if fits { lowering.expand(&name, operand, row.clone())? } else { lowering.reshape(&name, operand, row.clone())? });
    }
    if inputs.len() < 2 {
        return invalid("the scale is missing");
    }
    Ok(vec![lowering.emit_one(&call.name, Op::LayerNorm { axis, epsilon }, &inputs, lowering.dtype(x), shape)?])
}

/// Before opset 13 all dimensions from the axis on are one.
pub(super) fn softmax(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let log = call.node.op_type == "LogSoftmax";
    let axis = axis_of(call.int("axis", if call.opset < 13 { 1 } else { -1 })?, shape.len())?;
    let flattens = call.opset < 13 && elements(&shape[axis + 1..]) != Expr::Const(1);
    if !flattens {
        return Ok(vec![lowering.emit_one(&call.name, Op::Softmax { axis, log }, &[x], dtype, shape)?]);
    }
    let rows = vec![elements(&shape[..axis]), elements(&shape[axis..])];
    let flat = lowering.reshape(&format!("{}.flat", call.name), x, rows.clone())?;
    let y = lowering.emit_one(&call.name, Op::Softmax { axis: 1, log }, &[flat], dtype, rows)?;
    Ok(vec![lowering.reshape(&format!("{}.unrolled", call.name), y, shape)?])
}

pub(super) fn lp_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, mut shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let axis = axis_of(call.int("axis", -1)?, shape.len())?;
    let kind = match call.int("p", 2)? {
        2 => ReduceKind::L2,
        1 => ReduceKind::Sum,
        p => return invalid(format!("p = {p}")),
    };
    let source = if kind == ReduceKind::L2 {
        x
    } else {
        lowering.pointwise(&format!("{}.abs", call.name), &[x], ty, |p, x| {
            p.step(PointOp::Abs, ty, x);
        })?
    };
    shape[axis] = Expr::Const(1);
    let op = Op::Reduce(Reduce { kind, axes: vec![axis], keep_dims: true });
    let norm = lowering.emit_one(&format!("{}.norm", call.name), op, &[source], ty, shape)?;
    let y = lowering.pointwise(&call.name, &[x, norm], ty, |p, x| {
        // A row of zeros stays zeros.
        let is_zero = p.step(PointOp::Equal, ty, &[x[1], PointArg::Const(0.0)]);
        let divisor = p.step(PointOp::Where, ty, &[is_zero, PointArg::Const(1.0), x[1]]);
        p.step(PointOp::Div, ty, &[x[0], divisor]);
    })?;
    Ok(vec![y])
}

/// The sum over neighbouring channels is an average pooling over `[N, 1, C, H*W]` that counts its padding.
pub(super) fn local_response_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ty, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let size = call.int("size", 0)?;
    let (alpha, beta, bias) = (call.float("alpha", 1e-4)?, call.float("beta", 0.75)?, call.float("bias", 1.0)?);
    if shape.len() < 2 || !(1..=1 << 16).contains(&size) {
        return invalid(format!("size = {size} over {} dimensions", shape.len()));
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
