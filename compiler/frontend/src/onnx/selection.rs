//! Selects one of two results by a condition that is known only at run time.

use super::error::{LowerResult, invalid, unsupported};
use super::lowering::{Lowering, Type};
use super::scope::Item;
use crate::size::same_shape;
use crate::tensor_graph::{PointOp, ValueId};

/// `then` if the condition is true, else `other`.
pub(super) fn select(
    lowering: &mut Lowering,
    name: &str,
    condition: ValueId,
    then: &Item,
    other: &Item,
) -> LowerResult<Item> {
    match (then, other) {
        (Item::Tensor(then), Item::Tensor(other)) => {
            Ok(Item::Tensor(select_tensor(lowering, name, condition, *then, *other)?))
        }
        (Item::Sequence(then), Item::Sequence(other)) if then.len() == other.len() => {
            let pairs = then.iter().zip(other).enumerate();
            let elements = pairs
                .map(|(i, (then, other))| select_tensor(lowering, &format!("{name}.{i}"), condition, *then, *other));
            Ok(Item::Sequence(elements.collect::<LowerResult<_>>()?))
        }
        (Item::Nothing, Item::Nothing) => Ok(Item::Nothing),
        _ => unsupported(
            "its condition is known only at run time, and its branches differ in the length of a sequence or in an \
             optional",
        ),
    }
}

fn select_tensor(
    lowering: &mut Lowering,
    name: &str,
    condition: ValueId,
    then: ValueId,
    other: ValueId,
) -> LowerResult<ValueId> {
    if then == other {
        return Ok(then);
    }
    let (dtype, shape) = common_type(lowering, then, other)?;
    lowering.pointwise_to(name, &[condition, then, other], dtype, shape, |p, args| {
        p.step(PointOp::Where, dtype, args);
    })
}

/// The type and the shape that two results share, of which one is selected.
pub(super) fn common_type(lowering: &Lowering, then: ValueId, other: ValueId) -> LowerResult<Type> {
    let (dtype, shape) = (lowering.dtype(then), lowering.shape(then).to_vec());
    if dtype != lowering.dtype(other) {
        return invalid(format!(
            "its branches have results of different types, {dtype:?} and {:?}",
            lowering.dtype(other)
        ));
    }
    if !same_shape(&shape, lowering.shape(other)) {
        let (then, other) = (lowering.shape_text(&shape), lowering.shape_text(lowering.shape(other)));
        return unsupported(format!(
            "its condition is known only at run time, and its branches have results of different shapes, {then} and \
             {other}"
        ));
    }
    Ok((dtype, shape))
}
