//! Batch normalisation, for inference and for training.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::norm::{Moments, moments, per_channel, statistics_type};
use crate::tensor::Tensor;
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

/// For inference: `x * scale + shift`, with both factors folded at compile time if the statistics
/// are constants.
pub(super) fn batch_normalization(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    if rank < 2 {
        return invalid(format!("its operand has {rank} dimensions, so it has no channels"));
    }
    if call.flag("training_mode", false)? {
        return in_training(lowering, call, x);
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

/// Scale and shift from the constants scale, bias, mean and variance, computed in f64 and rounded
/// once.
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

/// For training: normalises with the statistics of the batch. The results are the normalised
/// operand, and the running mean and variance updated by `momentum`.
fn in_training(lowering: &mut Lowering, call: &Call<'_>, x: ValueId) -> Results {
    let (epsilon, momentum) = (call.float("epsilon", 1e-5)?, call.float("momentum", 0.9)?);
    let (dtype, rank) = (lowering.dtype(x), lowering.rank(x));
    let channels = lowering.shape(x)[1].clone();
    let shape = per_channel(channels.clone(), rank);
    let ty = statistics_type(dtype);
    let name = |part: &str| format!("{}.{part}", call.name);
    let mut operands = Vec::with_capacity(4);
    for index in 1..5 {
        let operand = lowering.reshape(&name(&index.to_string()), call.input(index)?, shape.clone())?;
        operands.push(lowering.cast(&name(&format!("{index}.wide")), operand, ty)?);
    }
    let wide = lowering.cast(&name("wide"), x, ty)?;
    let axes = (0..rank).filter(|axis| *axis != 1).collect();
    let Moments { mean, centred, variance } = moments(lowering, &name("moments"), wide, axes)?;
    let y = lowering.pointwise(&call.name, &[centred, variance, operands[0], operands[1]], dtype, |p, x| {
        let raised = p.step(PointOp::Add, ty, &[x[1], PointArg::Const(epsilon.into())]);
        let deviation = p.step(PointOp::Sqrt, ty, &[raised]);
        let normal = p.step(PointOp::Div, ty, &[x[0], deviation]);
        let scaled = p.step(PointOp::Mul, ty, &[normal, x[2]]);
        let shifted = p.step(PointOp::Add, ty, &[scaled, x[3]]);
        if ty != dtype {
            p.step(PointOp::Cast, dtype, &[shifted]);
        }
    })?;
    let mut results = vec![y];
    for (index, batch) in [(3, mean), (4, variance)] {
        let kept = lowering.dtype(call.input(index)?);
        let running =
            lowering.pointwise(&name(&format!("{index}.running")), &[operands[index - 1], batch], kept, |p, x| {
                let old = p.step(PointOp::Mul, ty, &[x[0], PointArg::Const(momentum.into())]);
                let new = p.step(PointOp::Mul, ty, &[x[1], PointArg::Const(1.0 - f64::from(momentum))]);
                let sum = p.step(PointOp::Add, ty, &[old, new]);
                if ty != kept {
                    p.step(PointOp::Cast, kept, &[sum]);
                }
            })?;
        results.push(lowering.reshape(&name(&format!("{index}.result")), running, vec![channels.clone()])?);
    }
    Ok(results)
}
