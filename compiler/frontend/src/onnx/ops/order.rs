//! `ArgMax` and `ArgMin`.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::pieces::{positions, reduce};
use crate::tensor::is_float;
use crate::tensor_graph::{PointArg, PointOp, ReduceKind, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The first or the last position of the extreme element along an axis. A NaN counts as the
/// extreme, as in NumPy.
pub(super) fn arg_extreme(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let shape = lowering.shape(x).to_vec();
    let axis = axis_of(call.int("axis", 0)?, shape.len())?;
    let kind = if call.node.op_type == "ArgMax" { ReduceKind::Max } else { ReduceKind::Min };
    let last = call.flag("select_last_index", false)?;
    let keep_dims = call.flag("keepdims", true)?;
    if shape[axis] == Expr::Const(0) {
        return invalid(format!("its axis {axis} has no elements"));
    }
    let (ty, index_ty) = (lowering.dtype(x), DType::I32);
    let name = |part: &str| format!("{}.{part}", call.name);
    let extreme = reduce(lowering, &name("extreme"), x, kind, vec![axis], true)?;
    let places = positions(lowering, &name("positions"), index_ty, shape.len(), axis, &shape[axis])?;
    let other = if last { -1.0 } else { f64::from(i32::MAX) };
    let candidates = lowering.pointwise(&name("candidates"), &[x, extreme, places], index_ty, |p, x| {
        let mut hit = p.step(PointOp::Equal, ty, &x[..2]);
        if is_float(ty) {
            let is_number = p.step(PointOp::Equal, ty, &[x[0], x[0]]);
            let is_nan = p.step(PointOp::Not, DType::Bool, &[is_number]);
            hit = p.step(PointOp::Or, DType::Bool, &[hit, is_nan]);
        }
        p.step(PointOp::Where, index_ty, &[hit, x[2], PointArg::Const(other)]);
    })?;
    let choose = if last { ReduceKind::Max } else { ReduceKind::Min };
    let place = reduce(lowering, &name("place"), candidates, choose, vec![axis], keep_dims)?;
    Ok(vec![lowering.cast(&call.name, place, DType::I64)?])
}
