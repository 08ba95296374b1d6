//! Helpers for the operators of this domain: rows of features, constants.

use super::super::super::call::Call;
use super::super::super::error::{LowerResult, unsupported};
use super::super::super::lowering::Lowering;
use crate::tensor::Tensor;
use crate::tensor_graph::ValueId;
use atoll_kgraph::{DType, Expr};

/// The operand as a matrix with a row of features per sample; a vector is one row.
pub(super) fn rows(lowering: &mut Lowering, call: &Call<'_>) -> LowerResult<(ValueId, [Expr; 2])> {
    let x = call.input(0)?;
    let shape = match lowering.shape(x) {
        [features] => [Expr::Const(1), features.clone()],
        [count, features] => [count.clone(), features.clone()],
        other => return unsupported(format!("an operand with {} dimensions; 1 or 2 are supported", other.len())),
    };
    Ok((lowering.reshape(&format!("{}.rows", call.name), x, shape.to_vec())?, shape))
}

/// A constant of floats.
pub(super) fn floats(
    lowering: &mut Lowering,
    name: &str,
    shape: &[usize],
    values: impl IntoIterator<Item = f64>,
) -> ValueId {
    let tensor = Tensor::floats(DType::F32, shape.to_vec(), values);
    lowering.constant(name, &tensor)
}

/// A constant vector of I32.
pub(super) fn integers(lowering: &mut Lowering, name: &str, values: Vec<i64>) -> ValueId {
    lowering.constant(name, &Tensor::ints(DType::I32, vec![values.len()], values))
}
