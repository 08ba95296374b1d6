//! Recurrent cells.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::{Lowering, shape_text};
use crate::size::same_shape;
use crate::tensor_graph::{Direction, Op, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn lstm(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (direction, directions) = read_direction(call)?;
    refuse_variants(call, directions)?;
    let (x, w, r) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let dtype = lowering.dtype(x);
    let [steps, batch, width] = lowering.shape(x) else { return invalid(format!("X of shape {}", shape_text(lowering.shape(x)))) };
    let (steps, batch, width) = (steps.clone(), batch.clone(), width.clone());
    let hidden = match lowering.shape(r).get(2).and_then(Expr::as_const) {
        Some(hidden) if hidden > 0 => hidden,
        _ => return invalid(format!("R of shape {}", shape_text(lowering.shape(r)))),
    };
    if call.int("hidden_size", hidden)? != hidden {
        return invalid("hidden_size differs from R");
    }
    let (d, h) = (Expr::Const(directions), Expr::Const(hidden));
    let rows = Expr::Const(4 * hidden);
    expect_shape(lowering, "W", w, &[d.clone(), rows.clone(), width])?;
    expect_shape(lowering, "R", r, &[d.clone(), rows, h.clone()])?;
    let state = vec![d.clone(), batch.clone(), h.clone()];
    let bias = operand_or_zeros(lowering, call, 3, "B", dtype, vec![d.clone(), Expr::Const(8 * hidden)])?;
    let h0 = operand_or_zeros(lowering, call, 5, "initial_h", dtype, state.clone())?;
    let c0 = operand_or_zeros(lowering, call, 6, "initial_c", dtype, state.clone())?;
    let outputs = vec![(dtype, vec![steps, d, batch, h]), (dtype, state.clone()), (dtype, state)];
    lowering.emit(&call.name, Op::Lstm { hidden: hidden as usize, direction }, &[x, w, r, bias, h0, c0], outputs)
}

fn read_direction(call: &Call<'_>) -> LowerResult<(Direction, i64)> {
    match call.string("direction", "forward")?.as_str() {
        "forward" => Ok((Direction::Forward, 1)),
        "reverse" => Ok((Direction::Reverse, 1)),
        "bidirectional" => Ok((Direction::Bidirectional, 2)),
        other => invalid(format!("direction = {other:?}")),
    }
}

/// What exporters of trained models do not write.
fn refuse_variants(call: &Call<'_>, directions: i64) -> LowerResult<()> {
    if call.optional(4).is_some() {
        return unsupported("sequence_lens: all sequences of a batch must have the same length");
    }
    if call.optional(7).is_some() {
        return unsupported("peephole weights");
    }
    if call.int("layout", 0)? != 0 {
        return unsupported("layout = 1");
    }
    if call.has("clip") || call.flag("input_forget", false)? {
        return unsupported("clip or input_forget");
    }
    let usual = ["Sigmoid", "Tanh", "Tanh"].repeat(directions as usize);
    match call.strings("activations")? {
        Some(activations) if activations != usual => unsupported(format!("activations {activations:?}")),
        _ => Ok(()),
    }
}

fn expect_shape(lowering: &Lowering, what: &str, id: ValueId, shape: &[Expr]) -> LowerResult<()> {
    if same_shape(lowering.shape(id), shape) {
        return Ok(());
    }
    let text = format!("{what} of shape {} where {} is expected", shape_text(lowering.shape(id)), shape_text(shape));
    let same_rank = lowering.rank(id) == shape.len();
    // A difference of symbols only may be resolved by making them one.
    for (found, wanted) in lowering.shape(id).iter().zip(shape).filter(|_| same_rank) {
        lowering.equal_dims(found.clone(), wanted.clone())?;
    }
    Err(LowerError::Invalid(text))
}

fn operand_or_zeros(
    lowering: &mut Lowering,
    call: &Call<'_>,
    index: usize,
    what: &str,
    dtype: DType,
    shape: Vec<Expr>,
) -> LowerResult<ValueId> {
    match call.optional(index) {
        Some(id) => expect_shape(lowering, what, id, &shape).map(|()| id),
        None => lowering.fill(&format!("{}.{what}", call.name), dtype, shape, 0.0),
    }
}
