//! Checks nodes with bodies.

use crate::control::LoopSpec;
use crate::size::Facts;
use crate::tensor_graph::{TensorGraph, Value, ValueId};
use atoll_kgraph::DType;

type Check = Result<(), String>;

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(reason()) }
}

/// Checks a choice between two bodies.
pub(super) fn choice(facts: Facts<'_>, bodies: [&TensorGraph; 2], inputs: &[&Value], outputs: &[&Value]) -> Check {
    let [then, otherwise] = bodies;
    let [condition, operands @ ..] = inputs else { return Err("it has no condition".into()) };
    scalar("the condition", condition, DType::Bool)?;
    ensure(operands.len() == then.inputs.len() + otherwise.inputs.len(), || {
        format!("it has {} operands, its branches take {}", operands.len(), then.inputs.len() + otherwise.inputs.len())
    })?;
    let (ours, others) = operands.split_at(then.inputs.len());
    for (body, operands) in [(then, ours), (otherwise, others)] {
        own(facts, body)?;
        all_equal(facts, "an operand of a branch", &values(body, &body.inputs), operands)?;
        all_equal(facts, "a result of a branch", &values(body, &body.outputs), outputs)?;
    }
    Ok(())
}

/// Checks a loop.
pub(super) fn repetition(
    facts: Facts<'_>,
    body: &TensorGraph,
    spec: &LoopSpec,
    inputs: &[&Value],
    outputs: &[&Value],
) -> Check {
    own(facts, body)?;
    ensure(spec.trips_max > 0 && (spec.trips.is_some() || spec.states_at() > 0), || "it never ends".into())?;
    let (takes, gives) = (values(body, &body.inputs), values(body, &body.outputs));
    let states = spec.states;
    ensure(inputs.len() >= spec.states_at() + states && takes.len() + spec.states_at() == inputs.len() + 1, || {
        format!("it has {} operands, and its body has {} inputs", inputs.len(), takes.len())
    })?;
    let is_whole = gives.len() >= spec.rows_at() && outputs.len() == 1 + states + gives.len() - spec.rows_at();
    ensure(is_whole, || format!("it has {} results, and its body has {} outputs", outputs.len(), gives.len()))?;
    if spec.has_count {
        scalar("the number of iterations", inputs[0], DType::I64)?;
    }
    if spec.has_condition {
        scalar("the condition", inputs[spec.states_at() - 1], DType::Bool)?;
        scalar("the next condition", gives[0], DType::Bool)?;
    }
    scalar("the number of the iteration", takes[0], DType::I64)?;
    scalar("the number of iterations that ran", outputs[0], DType::I64)?;
    all_equal(facts, "an operand of the body", &takes[1..], &inputs[spec.states_at()..])?;
    all_equal(facts, "a state", &gives[spec.rows_at() - states..spec.rows_at()], &outputs[1..=states])?;
    all_equal(facts, "a state", &takes[1..=states], &outputs[1..=states])?;
    for (row, rows) in gives[spec.rows_at()..].iter().zip(&outputs[1 + states..]) {
        let is_stack = row.dtype == rows.dtype
            && rows.shape.len() == row.shape.len() + 1
            && facts.same_shape(&rows.shape[1..], &row.shape);
        ensure(is_stack, || format!("{} {:?} is not a stack of {} {:?}", rows.name, rows.shape, row.name, row.shape))?;
    }
    Ok(())
}

/// Checks a body: it is a valid graph and adds no symbols.
fn own(facts: Facts<'_>, body: &TensorGraph) -> Check {
    ensure(body.symbols.len() <= facts.symbols.len(), || "a body has symbols that the graph does not have".into())?;
    ensure(body.run_time_sizes.is_empty() && body.elements.is_empty() && body.states.is_empty(), || {
        "a body computes sizes, or has states of a session".into()
    })?;
    body.verify().map_err(|faults| faults.to_string())
}

fn values<'g>(graph: &'g TensorGraph, ids: &[ValueId]) -> Vec<&'g Value> {
    ids.iter().map(|id| graph.value(*id)).collect()
}

fn scalar(what: &str, value: &Value, dtype: DType) -> Check {
    ensure(value.dtype == dtype && value.shape.is_empty(), || {
        format!("{what} is {:?}{:?} instead of a scalar of type {dtype:?}", value.dtype, value.shape)
    })
}

fn all_equal(facts: Facts<'_>, what: &str, inner: &[&Value], outer: &[&Value]) -> Check {
    ensure(inner.len() == outer.len(), || format!("{} instead of {}: {what}", inner.len(), outer.len()))?;
    inner.iter().zip(outer).try_for_each(|(inner, outer)| {
        ensure(inner.dtype == outer.dtype && facts.same_shape(&inner.shape, &outer.shape), || {
            format!(
                "{what}: {} is {:?}{:?}, {} is {:?}{:?}",
                inner.name, inner.dtype, inner.shape, outer.name, outer.dtype, outer.shape
            )
        })
    })
}
