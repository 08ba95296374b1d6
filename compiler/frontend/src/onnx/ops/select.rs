//! Operators that select elements by position.

use super::super::call::{Call, axes_of};
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::pieces::{part, positions};
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Compares every index with `0..depth`. A negative index counts from the end; an index outside
/// matches nothing.
pub(super) fn one_hot(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (indices, values) = (call.input(0)?, call.input(2)?);
    let name = |part: &str| format!("{}.{part}", call.name);
    let depth = lowering.require_known(call.input(1)?, "depth")?;
    let [depth] = &depth[..] else { return invalid("its depth is not one number") };
    let rank = lowering.rank(indices);
    let axis = axes_of(&[call.int("axis", -1)?], rank + 1)?[0];
    if lowering.shape(values) != [Expr::Const(2)] {
        return invalid("its values are not a pair");
    }
    let ty = lowering.dtype(values);
    let off = part(lowering, &name("off"), values, 0, 0, 1.into())?;
    let on = part(lowering, &name("on"), values, 0, 1, 1.into())?;
    let index_ty = match lowering.dtype(indices) {
        // A signed type that holds every depth.
        DType::I32 => DType::I32,
        _ => DType::I64,
    };
    let mut shape = lowering.shape(indices).to_vec();
    shape.insert(axis, Expr::Const(1));
    let indices = lowering.cast(&name("integers"), indices, index_ty)?;
    let indices = lowering.reshape(&name("indices"), indices, shape)?;
    let classes = positions(lowering, &name("classes"), index_ty, rank + 1, axis, depth)?;
    let Some(depth) = depth.as_const() else {
        return Err(lowering.open_size("its depth", depth));
    };
    Ok(vec![lowering.pointwise(&call.name, &[indices, classes, on, off], ty, |p, x| {
        let negative = p.step(PointOp::Less, index_ty, &[x[0], PointArg::Const(0.0)]);
        let raised = p.step(PointOp::Add, index_ty, &[x[0], PointArg::Const(depth as f64)]);
        let index = p.step(PointOp::Where, index_ty, &[negative, raised, x[0]]);
        let hit = p.step(PointOp::Equal, index_ty, &[index, x[1]]);
        p.step(PointOp::Where, ty, &[hit, x[2], x[3]]);
    })?])
}

/// Keeps the upper or the lower triangle of each matrix. `k` shifts the diagonal and may be
/// computed at run time.
pub(super) fn trilu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let [.., rows, columns] = &shape[..] else {
        return invalid(format!("its operand has {} dimensions; it needs at least 2", shape.len()));
    };
    let upper = call.flag("upper", true)?;
    let name = |part: &str| format!("{}.{part}", call.name);
    let ty = lowering.dtype(x);
    let index_ty = DType::I64;
    let row = positions(lowering, &name("rows"), index_ty, 2, 0, rows)?;
    let column = positions(lowering, &name("columns"), index_ty, 2, 1, columns)?;
    let mut inputs = vec![x, row, column];
    if let Some(k) = call.optional(1) {
        if lowering.dtype(k) != index_ty || !lowering.shape(k).iter().all(|d| *d == Expr::Const(1)) {
            return invalid("its k is not one I64");
        }
        inputs.push(lowering.reshape(&name("k"), k, Vec::new())?);
    }
    Ok(vec![lowering.pointwise(&call.name, &inputs, ty, |p, x| {
        let distance = p.step(PointOp::Sub, index_ty, &[x[2], x[1]]);
        let k = x.get(3).copied().unwrap_or(PointArg::Const(0.0));
        let keep = p.step(if upper { PointOp::GreaterOrEqual } else { PointOp::LessOrEqual }, index_ty, &[distance, k]);
        p.step(PointOp::Where, ty, &[keep, x[0], PointArg::Const(0.0)]);
    })?])
}
