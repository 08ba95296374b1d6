//! Recurrent layers: `RNN`, `GRU` and `LSTM`.
//!
//! A layer with the default activations, as exporters write trained models, is one operator of the
//! tensor graph with a kernel of its own. Any other layer (other activations, clipping, peepholes,
//! sequence lengths, a reset gate before the product) is unrolled over its steps, whose number must
//! then be known (`cells`).

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::lowering::Lowering;
use super::builder::Builder;
use super::cells::{self, Activation};
use crate::size::same_shape;
use crate::tensor_graph::{Cell, Direction, Op, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of steps of an unrolled layer.
const UNROLLED_STEPS_MAX: i64 = 1 << 9;

/// A layer with its operands; the time axis comes first.
pub(super) struct Layer {
    pub(super) cell: Cell,
    pub(super) direction: Direction,
    pub(super) directions: i64,
    pub(super) hidden: i64,
    pub(super) batch: Expr,
    /// `[T, B, I]`
    pub(super) x: ValueId,
    /// `[D, G H, I]`
    pub(super) w: ValueId,
    /// `[D, G H, H]`
    pub(super) r: ValueId,
    /// `[D, 2 G H]`
    pub(super) bias: ValueId,
    /// `[D, B, H]` each; one, or two for LSTM.
    pub(super) states: Vec<ValueId>,
    /// `[D, 3 H]`
    pub(super) peepholes: Option<ValueId>,
    /// `[B]`
    pub(super) lengths: Option<ValueId>,
    /// The activations of all gates of the first direction, then of the second.
    pub(super) activations: Vec<Activation>,
    pub(super) clip: Option<f32>,
    /// LSTM: whether the forget gate is 1 minus the input gate.
    pub(super) input_forget: bool,
    /// GRU: whether the reset gate is applied after the product.
    pub(super) reset_after: bool,
}

pub(super) fn rnn(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    lower(lowering, call, Cell::Rnn)
}

pub(super) fn gru(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    lower(lowering, call, Cell::Gru)
}

pub(super) fn lstm(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    lower(lowering, call, Cell::Lstm)
}

fn lower(lowering: &mut Lowering, call: &Call<'_>, cell: Cell) -> Results {
    // With layout 1 the batch axis comes first in operands and results.
    let batch_first = call.int("layout", 0)? != 0;
    let layer = read(lowering, call, cell, batch_first)?;
    let mut results = match unsupported_feature(lowering, &layer) {
        None => one_operator(lowering, call, &layer)?,
        Some(unsupported_feature) => match lowering.shape(layer.x)[0].as_const() {
            Some(steps) if steps <= UNROLLED_STEPS_MAX => {
                cells::unroll(&mut Builder::new(lowering, &call.name), &layer, steps)?
            }
            Some(steps) => {
                let (what, found) = (format!("the number of steps, with {unsupported_feature},"), steps.to_string());
                return Err(LowerError::TooLarge { what, found, limit: UNROLLED_STEPS_MAX.to_string() });
            }
            None => {
                let what = format!("its number of steps (with {unsupported_feature}, its steps are unrolled)");
                return Err(lowering.open_size(&what, &lowering.shape(layer.x)[0]));
            }
        },
    };
    if batch_first {
        let b = &mut Builder::new(lowering, &call.name);
        for (index, result) in results.iter_mut().enumerate() {
            *result = b.transpose("batch_first", *result, if index == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] })?;
        }
    }
    Ok(results)
}

fn read(lowering: &mut Lowering, call: &Call<'_>, cell: Cell, batch_first: bool) -> LowerResult<Layer> {
    let (direction, directions) = read_direction(call)?;
    let (mut x, w, r) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let dtype = lowering.dtype(x);
    if lowering.rank(x) != 3 {
        return invalid(format!(
            "its operand X has shape {}; it needs 3 dimensions",
            lowering.shape_text(lowering.shape(x))
        ));
    }
    if batch_first {
        x = lowering.transpose(&format!("{}.time_first", call.name), x, vec![1, 0, 2])?;
    }
    let (batch, width) = (lowering.shape(x)[1].clone(), lowering.shape(x)[2].clone());
    if let Some(dim) = lowering.shape(r).get(2).filter(|dim| dim.as_const().is_none() && call.has("hidden_size")) {
        lowering.equal_dims(dim.clone(), call.int("hidden_size", 0)?.into())?;
    }
    let hidden = match lowering.shape(r).get(2).and_then(Expr::as_const) {
        Some(hidden) if hidden > 0 => hidden,
        _ => {
            return invalid(format!(
                "its operand R has shape {}; its last dimension must be a positive number",
                lowering.shape_text(lowering.shape(r))
            ));
        }
    };
    if call.int("hidden_size", hidden)? != hidden {
        return invalid("its hidden_size differs from that of R");
    }
    let (d, h) = (Expr::Const(directions), Expr::Const(hidden));
    let rows = cell.gates() as i64 * hidden;
    expect_shape(lowering, "W", w, &[d.clone(), rows.into(), width])?;
    expect_shape(lowering, "R", r, &[d.clone(), rows.into(), h.clone()])?;
    let bias = operand_or_zeros(lowering, call, 3, "B", dtype, vec![d.clone(), Expr::Const(2 * rows)])?;
    let mut states = Vec::with_capacity(cell.states());
    for (index, name) in [(5, "initial_h"), (6, "initial_c")].into_iter().take(cell.states()) {
        let mut shape = vec![d.clone(), batch.clone(), h.clone()];
        if batch_first {
            shape.swap(0, 1);
        }
        let state = operand_or_zeros(lowering, call, index, name, dtype, shape)?;
        states.push(if batch_first {
            lowering.transpose(&format!("{}.{name}", call.name), state, vec![1, 0, 2])?
        } else {
            state
        });
    }
    let is_lstm = cell == Cell::Lstm;
    let peepholes = call.optional(7).filter(|_| is_lstm);
    if let Some(peepholes) = peepholes {
        expect_shape(lowering, "P", peepholes, &[d, Expr::Const(3 * hidden)])?;
    }
    let lengths = call.optional(4);
    if let Some(lengths) = lengths {
        expect_shape(lowering, "sequence_lens", lengths, std::slice::from_ref(&batch))?;
    }
    let clip = if call.has("clip") { Some(call.float("clip", 0.0)?) } else { None };
    let (input_forget, reset_after) =
        (is_lstm && call.flag("input_forget", false)?, call.flag("linear_before_reset", false)?);
    let activations = cells::read_activations(call, cell, directions)?;
    Ok(Layer {
        cell,
        direction,
        directions,
        hidden,
        batch,
        x,
        w,
        r,
        bias,
        states,
        peepholes,
        lengths,
        activations,
        clip: clip.filter(|clip| *clip > 0.0),
        input_forget,
        reset_after,
    })
}

/// The first feature of the layer that the operator of the tensor graph does not support.
fn unsupported_feature(lowering: &Lowering, layer: &Layer) -> Option<String> {
    let usual = cells::default_activations(layer.cell, layer.directions);
    let dtype = lowering.dtype(layer.x);
    if layer.lengths.is_some() {
        Some("sequence_lens".into())
    } else if layer.peepholes.is_some() {
        Some("peepholes".into())
    } else if layer.activations != usual {
        Some("activations other than the default".into())
    } else if layer.clip.is_some() {
        Some("clip".into())
    } else if layer.input_forget {
        Some("input_forget".into())
    } else if layer.cell == Cell::Gru && !layer.reset_after {
        Some("linear_before_reset = 0".into())
    } else if dtype != DType::F32 {
        Some(format!("elements of type {dtype:?}"))
    } else {
        None
    }
}

fn one_operator(lowering: &mut Lowering, call: &Call<'_>, layer: &Layer) -> Results {
    let dtype = lowering.dtype(layer.x);
    let (steps, d, h) = (lowering.shape(layer.x)[0].clone(), Expr::Const(layer.directions), Expr::Const(layer.hidden));
    let state = (dtype, vec![d.clone(), layer.batch.clone(), h.clone()]);
    let mut outputs = vec![(dtype, vec![steps, d, layer.batch.clone(), h])];
    outputs.extend(vec![state; layer.cell.states()]);
    let op = Op::Recurrent { cell: layer.cell, hidden: layer.hidden as usize, direction: layer.direction };
    lowering.emit(&call.name, op, &[&[layer.x, layer.w, layer.r, layer.bias], &layer.states[..]].concat(), outputs)
}

fn read_direction(call: &Call<'_>) -> LowerResult<(Direction, i64)> {
    match call.string("direction", "forward")?.as_str() {
        "forward" => Ok((Direction::Forward, 1)),
        "reverse" => Ok((Direction::Reverse, 1)),
        "bidirectional" => Ok((Direction::Bidirectional, 2)),
        other => invalid(format!("its attribute direction is {other:?}, which ONNX does not define")),
    }
}

fn expect_shape(lowering: &Lowering, what: &str, id: ValueId, shape: &[Expr]) -> LowerResult<()> {
    if same_shape(lowering.shape(id), shape) {
        return Ok(());
    }
    let text = format!(
        "its {what} has shape {} instead of {}",
        lowering.shape_text(lowering.shape(id)),
        lowering.shape_text(shape)
    );
    let same_rank = lowering.rank(id) == shape.len();
    // Symbols that differ are resolved by requiring them to be equal.
    for (found, wanted) in lowering.shape(id).iter().zip(shape).filter(|_| same_rank) {
        lowering.equal_dims(found.clone(), wanted.clone())?;
    }
    if same_rank { Ok(()) } else { Err(LowerError::Invalid(text)) }
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
