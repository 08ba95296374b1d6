//! Operators whose result size depends on the values of their operands.

use super::super::call::{Call, axis_of};
use super::super::error::{LowerResult, invalid};
use super::super::lowering::{Lowering, Selection};
use crate::nest::{NestArg, NestBuilder};
use crate::size::elements;
use crate::tensor_graph::{Op, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// The coordinates of the nonzero elements, one row per axis.
pub(super) fn non_zero(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let Selection { positions, count } = lowering.selection(&call.name, x)?;
    // A scalar counts as one element in one dimension.
    let shape = if lowering.rank(x) == 0 { vec![Expr::Const(1)] } else { lowering.shape(x).to_vec() };
    let result = vec![Expr::Const(shape.len() as i64), count.clone()];
    let mut nest = NestBuilder::new("coordinates", vec![count]);
    let at = nest.point()[0].clone();
    let position = nest.load(0, DType::I32, &at);
    for (axis, coordinate) in nest.unravel(&position, &shape).iter().enumerate() {
        let to = nest.offset(&result, &[NestArg::from(axis as i64), at.clone()]);
        let coordinate = nest.cast(coordinate, DType::I64);
        nest.store(0, &to, &coordinate);
    }
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &[positions], DType::I64, result)?])
}

/// The slices of an axis, or the elements, for which the condition is true.
pub(super) fn compress(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (data, condition) = (call.input(0)?, call.input(1)?);
    if lowering.rank(condition) != 1 || lowering.dtype(condition) != DType::Bool {
        return invalid("its condition is not a vector of booleans");
    }
    let (data, axis) = if call.has("axis") {
        (data, axis_of(call.int("axis", 0)?, lowering.rank(data))?)
    } else {
        let all = elements(lowering.shape(data));
        (lowering.reshape(&format!("{}/flat", call.name), data, vec![all])?, 0)
    };
    let Selection { positions, count } = lowering.selection(&call.name, condition)?;
    let first = Op::Slice { starts: vec![Expr::Const(0)], steps: vec![1] };
    let indices =
        lowering.emit_one(&format!("{}/indices", call.name), first, &[positions], DType::I32, vec![count.clone()])?;
    let mut shape = lowering.shape(data).to_vec();
    shape[axis] = count;
    Ok(vec![lowering.emit_one(&call.name, Op::Gather { axis }, &[data, indices], lowering.dtype(data), shape)?])
}
