//! Control flow in the reference interpreter.

use super::{OutputType, ReferenceError, run_with};
use crate::control::LoopSpec;
use crate::tensor::{Data, Tensor, is_float};
use crate::tensor_graph::TensorGraph;
use atoll_kgraph::DType;

/// Runs the branch that the first operand, the condition, selects.
pub(super) fn choose(
    [then, otherwise]: [&TensorGraph; 2],
    inputs: &[&Tensor],
    symbols: &[i64],
) -> Result<Vec<Tensor>, ReferenceError> {
    let [condition, operands @ ..] = inputs else { return Err(missing()) };
    let (ours, others) = operands.split_at_checked(then.inputs.len()).ok_or_else(missing)?;
    let (body, operands) = if integer(condition)? != 0 { (then, ours) } else { (otherwise, others) };
    run_with(body, operands.iter().map(|tensor| (*tensor).clone()).collect(), symbols.to_vec())
}

/// Runs a loop.
pub(super) fn repeat(
    body: &TensorGraph,
    spec: &LoopSpec,
    inputs: &[&Tensor],
    outputs: &[OutputType],
    symbols: &[i64],
) -> Result<Vec<Tensor>, ReferenceError> {
    let (fixed, operands) = inputs.split_at_checked(spec.states_at()).ok_or_else(missing)?;
    let (states, captured) = operands.split_at_checked(spec.states).ok_or_else(missing)?;
    let given = if spec.has_count { Some(integer(fixed[0])?) } else { None };
    let sized = spec.trips.as_ref().map(|trips| trips.eval(symbols)).transpose();
    let sized = sized.map_err(|source| ReferenceError::Size { value: "a number of iterations".into(), source })?;
    let trips = [given, sized].into_iter().flatten().min().unwrap_or(i64::MAX);
    let mut goes_on = !spec.has_condition || integer(fixed[spec.states_at() - 1])? != 0;
    let mut states: Vec<Tensor> = states.iter().map(|tensor| (*tensor).clone()).collect();
    let mut rows: Vec<Tensor> = outputs.iter().skip(1 + spec.states).map(empty).collect();
    let mut iteration = 0;
    while iteration < trips && goes_on {
        if iteration as u64 >= spec.trips_max {
            let text = "a loop has run {} iterations, which is its limit, and would go on".into();
            return Err(ReferenceError::Refused { text, numbers: vec![iteration] });
        }
        let number = Tensor::ints(DType::I64, vec![], [iteration]);
        let captured = captured.iter().map(|tensor| (*tensor).clone());
        let operands = std::iter::once(number).chain(states).chain(captured).collect();
        let mut results = run_with(body, operands, symbols.to_vec())?;
        let own_rows = results.split_off(spec.rows_at());
        states = results.split_off(results.len() - spec.states);
        if spec.has_condition {
            goes_on = integer(results.first().ok_or_else(missing)?)? != 0;
        }
        own_rows.iter().zip(&mut rows).for_each(|(row, rows)| put(rows, iteration as usize, row));
        iteration += 1;
    }
    Ok(std::iter::once(Tensor::ints(DType::I64, vec![], [iteration])).chain(states).chain(rows).collect())
}

fn missing() -> ReferenceError {
    ReferenceError::Invalid("an operand of a body is missing".into())
}

/// The value of a scalar tensor.
fn integer(tensor: &Tensor) -> Result<i64, ReferenceError> {
    match &tensor.data {
        Data::Int(values) if values.len() == 1 => Ok(values[0]),
        _ => Err(ReferenceError::Invalid("a condition or a number of iterations is not a scalar".into())),
    }
}

fn empty((dtype, shape): &OutputType) -> Tensor {
    let count = shape.iter().product();
    match is_float(*dtype) {
        true => Tensor::floats(*dtype, shape.clone(), std::iter::repeat_n(0.0, count)),
        false => Tensor::ints(*dtype, shape.clone(), std::iter::repeat_n(0, count)),
    }
}

fn put(rows: &mut Tensor, index: usize, row: &Tensor) {
    let range = index * row.len()..(index + 1) * row.len();
    match (&mut rows.data, &row.data) {
        (Data::Float(rows), Data::Float(row)) => rows[range].copy_from_slice(row),
        (Data::Int(rows), Data::Int(row)) => rows[range].copy_from_slice(row),
        _ => {}
    }
}
