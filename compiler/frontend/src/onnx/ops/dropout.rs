//! `Dropout`: the identity at inference.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::size::elements;
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

/// Returns the operand and a mask of ones. An invocation in training mode fails, unless the ratio
/// is 0.
pub(super) fn dropout(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let (ratio, training) = (call.optional(1), call.optional(2));
    for id in [ratio, training].into_iter().flatten() {
        if lowering.shape(id).iter().any(|dim| dim.as_const() != Some(1)) {
            return invalid("its ratio or training_mode is not one number");
        }
    }
    let number = |id: Option<ValueId>, default: f64| match id {
        Some(id) => lowering.tensor(id).and_then(|tensor| tensor.to_f64().first().copied()),
        None => Some(default),
    };
    let is_training = number(training, 0.0).map(|training| training != 0.0);
    let drops = number(ratio, 0.5).map(|ratio| ratio != 0.0);
    let y = match (is_training, drops) {
        (Some(false), _) | (_, Some(false)) => x,
        (Some(true), Some(true)) => return unsupported("training_mode = 1; export the model in evaluation mode"),
        _ => checked(lowering, call, x, ratio, training)?,
    };
    // Before operator set 10 the mask has the type of the operand.
    let mask_type = if call.opset < 10 { lowering.dtype(x) } else { DType::Bool };
    match call.node.output.get(1).is_some_and(|mask| !mask.is_empty()) {
        true => Ok(vec![y, lowering.fill(&format!("{}.mask", call.name), mask_type, lowering.shape(x).to_vec(), 1.0)?]),
        false => Ok(vec![y]),
    }
}

/// The operand, copied by a kernel that fails the invocation in training mode.
fn checked(
    lowering: &mut Lowering,
    call: &Call<'_>,
    x: ValueId,
    ratio: Option<ValueId>,
    training: Option<ValueId>,
) -> LowerResult<ValueId> {
    let (dtype, shape) = (lowering.dtype(x), lowering.shape(x).to_vec());
    let all = elements(&shape);
    let x = lowering.reshape(&format!("{}.flat", call.name), x, vec![all.clone()])?;
    let mut nest = NestBuilder::new("dropout", vec![all.clone()]);
    let at = nest.point()[0].clone();
    let (zero, mut operands, mut trains) = (NestArg::from(0), vec![x], NestArg::Const(1.0));
    for id in [ratio, training].into_iter().flatten() {
        let ty = lowering.dtype(id);
        let number = nest.load(operands.len() as u32, ty, &zero);
        operands.push(id);
        let is_set = match ty {
            DType::Bool => number,
            ty => {
                let is_zero = nest.compare(PointOp::Equal, ty, &number, &zero);
                nest.step(PointOp::Not, DType::Bool, &[is_zero])
            }
        };
        trains = if trains == NestArg::Const(1.0) { is_set } else { nest.both(&trains, &is_set) };
    }
    nest.refuse(&trains, "training_mode is set, and elements would be dropped", &[]);
    let value = nest.load(0, dtype, &at);
    nest.store(0, &at, &value);
    let y = lowering.emit_one(&call.name, Op::Nest(nest.finish()), &operands, dtype, vec![all])?;
    lowering.reshape(&format!("{}.y", call.name), y, shape)
}
