//! `FlexAttention` of domain `ai.onnx.preview`: attention with subgraphs that modify scores and
//! weights.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid};
use super::super::failure::{Failure, tensor_of};
use super::super::import::Import;
use super::super::read::dtype_of;
use super::super::scope::{Body, Item};
use super::attention::{Scale, default_scale, scores_of, weighted};
use super::builder::Builder;
use crate::size::same_shape;
use crate::tensor_graph::ValueId;
use atoll_kgraph::DType;

pub(in super::super) fn flex_attention<'m>(import: &mut Import<'m>, call: &Call<'m>) -> Result<Vec<Item>, Failure> {
    let (q, k, v) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let mut b = Builder::new(&mut import.lowering, &call.name);
    let size = b.dims::<4>("Q", q)?[3].clone();
    let scale = match call.has("scale") {
        true => Scale::Number(call.float("scale", 0.0)?.into()),
        false => default_scale(&size)?,
    };
    let precision = precision(call, b.dtype(q))?;
    let scores = scores_of(&mut b, q, k, &scale)?;
    let scores = b.cast("precise", scores, precision)?;
    let scores = changed(import, call, "score_mod", scores)?;
    let weights = Builder::new(&mut import.lowering, &call.name).softmax("weights", scores)?;
    let weights = changed(import, call, "prob_mod", weights)?;
    let mut b = Builder::new(&mut import.lowering, &call.name);
    let dtype = b.dtype(v);
    let v = b.cast("values", v, precision)?;
    let y = weighted(&mut b, weights, v)?;
    Ok(vec![Item::Tensor(b.cast("y", y, dtype)?)])
}

fn precision(call: &Call<'_>, dtype: DType) -> LowerResult<DType> {
    match call.int("softmax_precision", 0)? as i32 {
        0 if dtype == DType::F64 => Ok(dtype),
        0 => Ok(DType::F32),
        number => dtype_of(number)
            .ok_or_else(|| LowerError::Unsupported(format!("its softmax_precision is type number {number}"))),
    }
}

/// Applies a subgraph of the node to a tensor; without the subgraph, returns the tensor.
fn changed<'m>(import: &mut Import<'m>, call: &Call<'m>, subgraph: &str, x: ValueId) -> Result<ValueId, Failure> {
    if !call.has(subgraph) {
        return Ok(x);
    }
    let body = Body::of_graph(call.graph(subgraph)?)?;
    let results = import.lower_body(&body, &format!("{}/{subgraph}", call.name), vec![Item::Tensor(x)], None)?;
    let [result] = &results[..] else {
        return Ok(invalid(format!("its subgraph {subgraph} has {} results instead of 1", results.len()))?);
    };
    let result = tensor_of(result, subgraph)?;
    let lowering = &import.lowering;
    if lowering.dtype(result) != lowering.dtype(x) || !same_shape(lowering.shape(result), lowering.shape(x)) {
        return Ok(invalid(format!("its subgraph {subgraph} changes the type or the shape"))?);
    }
    Ok(result)
}
