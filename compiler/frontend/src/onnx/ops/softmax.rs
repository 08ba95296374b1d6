//! Softmax, its logarithm, and hardmax.

use super::super::call::{Call, axis_of};
use super::super::error::LowerResult;
use super::super::lowering::Lowering;
use super::norm::reduced;
use super::pieces;
use crate::size::elements;
use crate::tensor_graph::{Op, PointArg, PointOp, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Applies `body` along the axis; before opset 13, all dimensions from the axis on are flattened
/// into one.
fn along_axis(
    lowering: &mut Lowering,
    call: &Call<'_>,
    body: impl FnOnce(&mut Lowering, ValueId, usize) -> LowerResult<ValueId>,
) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(call.int("axis", if call.opset < 13 { 1 } else { -1 })?, shape.len())?;
    let flattens = call.opset < 13 && elements(&shape[axis + 1..]) != Expr::Const(1);
    if !flattens {
        return Ok(vec![body(lowering, x, axis)?]);
    }
    let rows = vec![elements(&shape[..axis]), elements(&shape[axis..])];
    let flat = lowering.reshape(&format!("{}.flat", call.name), x, rows)?;
    let y = body(lowering, flat, 1)?;
    Ok(vec![lowering.reshape(&format!("{}.unrolled", call.name), y, shape)?])
}

pub(super) fn softmax(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let log = call.node.op_type == "LogSoftmax";
    along_axis(lowering, call, |lowering, x, axis| normalized(lowering, &call.name, x, axis, log))
}

/// The softmax of a value, or its logarithm. The kernel computes in f32, so f64 uses reductions.
pub(super) fn normalized(
    lowering: &mut Lowering,
    name: &str,
    x: ValueId,
    axis: usize,
    log: bool,
) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    if ty != DType::F64 {
        let shape = lowering.shape(x).to_vec();
        return lowering.emit_one(name, Op::Softmax { axis, log }, &[x], ty, shape);
    }
    let greatest = reduced(lowering, &format!("{name}.max"), x, ReduceKind::Max, vec![axis])?;
    let shifted = lowering.pointwise(&format!("{name}.shifted"), &[x, greatest], ty, |p, x| {
        p.step(PointOp::Sub, ty, x);
    })?;
    let power = lowering.pointwise(&format!("{name}.exp"), &[shifted], ty, |p, x| {
        p.step(PointOp::Exp, ty, x);
    })?;
    let sum = reduced(lowering, &format!("{name}.sum"), power, ReduceKind::Sum, vec![axis])?;
    let first = if log { shifted } else { power };
    lowering.pointwise(name, &[first, sum], ty, |p, x| {
        if log {
            let logarithm = p.step(PointOp::Log, ty, &[x[1]]);
            p.step(PointOp::Sub, ty, &[x[0], logarithm]);
        } else {
            p.step(PointOp::Div, ty, x);
        }
    })
}

/// 1 at the first largest element along the axis, 0 elsewhere.
pub(super) fn hardmax(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    along_axis(lowering, call, |lowering, x, axis| {
        let ty = lowering.dtype(x);
        let first = first_largest(lowering, &call.name, x, axis)?;
        let positions = positions(lowering, &format!("{}.positions", call.name), x, axis)?;
        lowering.pointwise(&call.name, &[positions, first], ty, |p, x| {
            let is_first = p.step(PointOp::Equal, DType::I32, x);
            p.step(PointOp::Cast, ty, &[is_first]);
        })
    })
}

/// Position of the first largest element along the axis, which is kept with extent 1; I32.
pub(super) fn first_largest(lowering: &mut Lowering, name: &str, x: ValueId, axis: usize) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    let greatest = reduced(lowering, &format!("{name}.max"), x, ReduceKind::Max, vec![axis])?;
    let positions = positions(lowering, &format!("{name}.indices"), x, axis)?;
    let candidates =
        lowering.pointwise(&format!("{name}.candidates"), &[x, greatest, positions], DType::I32, |p, x| {
            let is_greatest = p.step(PointOp::Equal, ty, &x[..2]);
            p.step(PointOp::Where, DType::I32, &[is_greatest, x[2], PointArg::Const(i32::MAX.into())]);
        })?;
    reduced(lowering, &format!("{name}.first"), candidates, ReduceKind::Min, vec![axis])
}

/// `0, 1, 2, …` along an axis; the other dimensions are 1; I32.
pub(super) fn positions(lowering: &mut Lowering, name: &str, x: ValueId, axis: usize) -> LowerResult<ValueId> {
    let extent = lowering.shape(x)[axis].clone();
    pieces::positions(lowering, name, DType::I32, lowering.rank(x), axis, &extent)
}
