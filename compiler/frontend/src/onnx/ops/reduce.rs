//! Reductions.

use super::super::call::{Call, axes_of};
use super::super::error::{LowerResult, unsupported};
use super::super::lowering::Lowering;
use crate::tensor::is_float;
use crate::tensor_graph::{Op, PointArg, PointOp, Reduce, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// All `Reduce…` operators. Some are a reduction between two pointwise steps. Booleans are reduced
/// as integers; roots and logarithms of integers are computed in f64.
pub(super) fn reduce(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let Some(axes) = read_axes(lowering, call, x)? else { return Ok(vec![x]) };
    let dtype = lowering.dtype(x);
    let compute = match call.node.op_type.as_str() {
        _ if dtype == DType::Bool => DType::U8,
        "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" if !is_float(dtype) => DType::F64,
        _ => dtype,
    };
    let wide = lowering.cast(&format!("{}.wide", call.name), x, compute)?;
    let y = over_axes(lowering, call, wide, axes)?;
    Ok(vec![lowering.cast(&format!("{}.narrow", call.name), y, dtype)?])
}

fn over_axes(lowering: &mut Lowering, call: &Call<'_>, x: ValueId, axes: Vec<usize>) -> LowerResult<ValueId> {
    let keep_dims = call.flag("keepdims", true)?;
    let kind = match call.node.op_type.as_str() {
        "ReduceSum" | "ReduceL1" | "ReduceLogSum" => ReduceKind::Sum,
        "ReduceMean" => ReduceKind::Mean,
        "ReduceMax" => ReduceKind::Max,
        "ReduceMin" => ReduceKind::Min,
        "ReduceProd" => ReduceKind::Prod,
        "ReduceSumSquare" => ReduceKind::SumSquare,
        "ReduceL2" => ReduceKind::L2,
        "ReduceLogSumExp" => return log_sum_exp(lowering, call, x, axes, keep_dims),
        other => return unsupported(other),
    };
    let x = if call.node.op_type == "ReduceL1" {
        unary(lowering, &format!("{}.abs", call.name), x, PointOp::Abs)?
    } else {
        x
    };
    let y = one(lowering, &call.name, x, Reduce { kind, axes, keep_dims })?;
    if call.node.op_type == "ReduceLogSum" {
        unary(lowering, &format!("{}.log", call.name), y, PointOp::Log)
    } else {
        Ok(y)
    }
}

/// The reduced axes; `None` if nothing is reduced. They are an attribute at first, and an operand
/// from opset 13 (`ReduceSum`) or 18 on.
fn read_axes(lowering: &Lowering, call: &Call<'_>, x: ValueId) -> LowerResult<Option<Vec<usize>>> {
    let rank = lowering.rank(x);
    let given = match call.optional(1) {
        Some(axes) => lowering.require_ints(axes, "list of axes")?,
        None => call.ints("axes")?.unwrap_or_default(),
    };
    if !given.is_empty() {
        return axes_of(&given, rank).map(Some);
    }
    Ok((!call.flag("noop_with_empty_axes", false)?).then(|| (0..rank).collect()))
}

fn unary(lowering: &mut Lowering, name: &str, x: ValueId, op: PointOp) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    lowering.pointwise(name, &[x], ty, |p, x| {
        p.step(op, ty, x);
    })
}

pub(super) fn one(lowering: &mut Lowering, name: &str, x: ValueId, reduce: Reduce) -> LowerResult<ValueId> {
    let shape = lowering.shape(x).iter().enumerate();
    let shape = if reduce.keep_dims {
        shape.map(|(axis, dim)| if reduce.axes.contains(&axis) { Expr::Const(1) } else { dim.clone() }).collect()
    } else {
        shape.filter(|(axis, _)| !reduce.axes.contains(axis)).map(|(_, dim)| dim.clone()).collect()
    };
    lowering.emit_one(name, Op::Reduce(reduce), &[x], lowering.dtype(x), shape)
}

/// `max + log(sum(exp(x - max)))`. An infinite maximum is replaced by 0, because its difference
/// from itself would be NaN.
fn log_sum_exp(
    lowering: &mut Lowering,
    call: &Call<'_>,
    x: ValueId,
    axes: Vec<usize>,
    keep_dims: bool,
) -> LowerResult<ValueId> {
    let ty = lowering.dtype(x);
    let name = |part: &str| format!("{}.{part}", call.name);
    let max = one(lowering, &name("max"), x, Reduce { kind: ReduceKind::Max, axes: axes.clone(), keep_dims: true })?;
    let max = lowering.pointwise(&name("finite"), &[max], ty, |p, x| {
        let magnitude = p.step(PointOp::Abs, ty, x);
        let is_infinite = p.step(PointOp::Equal, ty, &[magnitude, PointArg::Const(f64::INFINITY)]);
        p.step(PointOp::Where, ty, &[is_infinite, PointArg::Const(0.0), x[0]]);
    })?;
    let exp = lowering.pointwise(&name("exp"), &[x, max], ty, |p, x| {
        let shifted = p.step(PointOp::Sub, ty, x);
        p.step(PointOp::Exp, ty, &[shifted]);
    })?;
    let sum = one(lowering, &name("sum"), exp, Reduce { kind: ReduceKind::Sum, axes: axes.clone(), keep_dims: true })?;
    let y = lowering.pointwise(&call.name, &[sum, max], ty, |p, x| {
        let log = p.step(PointOp::Log, ty, &[x[0]]);
        p.step(PointOp::Add, ty, &[log, x[1]]);
    })?;
    if keep_dims {
        return Ok(y);
    }
    let kept =
        lowering.shape(y).iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, d)| d.clone()).collect();
    lowering.reshape(&name("squeezed"), y, kept)
}
