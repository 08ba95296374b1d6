//! Operators that generate tensors from attributes and shapes.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::read::{Literal, dtype_of};
use crate::size::static_shape;
use crate::tensor::{Data, Tensor, is_float};
use crate::tensor_graph::ValueId;
use atoll_kgraph::DType;
use std::sync::Arc;

type Results = LowerResult<Vec<ValueId>>;

/// Largest constant, in bytes, that is generated from one number.
const GENERATED_BYTES_MAX: u64 = 1 << 30;

pub(super) fn constant(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let vector = |floats: Vec<f32>| (vec![floats.len()], floats);
    if let Some(tensor) = call.tensor("value")? {
        let literal = lowering.attribute_tensor(tensor, &call.name)?;
        return Ok(vec![lowering.literal(&call.name, literal)]);
    }
    let tensor = if call.has("value_float") {
        Tensor::floats(DType::F32, vec![], [call.float("value_float", 0.0)?.into()])
    } else if call.has("value_int") {
        Tensor::ints(DType::I64, vec![], [call.int("value_int", 0)?])
    } else if let Some(values) = call.floats("value_floats")? {
        let (shape, values) = vector(values);
        Tensor::floats(DType::F32, shape, values.into_iter().map(f64::from))
    } else if let Some(values) = call.ints("value_ints")? {
        Tensor::ints(DType::I64, vec![values.len()], values)
    } else if let Some(texts) = call.strings("value_strings")? {
        lowering.strings(&texts)?
    } else if call.has("value_string") {
        lowering.strings(&[call.string("value_string", "")?])?.reshaped(Vec::new())
    } else {
        return unsupported("its value is not a dense tensor");
    };
    Ok(vec![lowering.constant(&call.name, &tensor)])
}

/// Size in bytes of a generated constant; `None` if it exceeds the limit.
fn generated_bytes(shape: &[usize], dtype: DType) -> Option<u64> {
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim as u64))?;
    (bytes <= GENERATED_BYTES_MAX).then_some(bytes)
}

pub(super) fn constant_of_shape(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let shape = lowering.require_known(call.input(0)?, "shape")?;
    let value = match call.tensor("value")? {
        Some(tensor) => {
            let literal = lowering.attribute_tensor(tensor, &call.name)?;
            Tensor::from_bytes(literal.dtype, &literal.shape, &literal.bytes)
        }
        None => Some(Tensor::floats(DType::F32, vec![1], [0.0])),
    };
    let Some(value) = value.filter(|v| v.len() == 1) else {
        return invalid("its value does not have exactly one element");
    };
    let number = match &value.data {
        Data::Float(values) => values[0],
        Data::Int(values) => values[0] as f64,
    };
    // Generated models use this operator for weights, so the result is a constant if its size is
    // known.
    Ok(vec![match static_shape(&shape) {
        Some(shape) if generated_bytes(&shape, value.dtype).is_some_and(|bytes| lowering.reserve_generated(bytes)) => {
            let bytes: Arc<[u8]> = value.to_bytes().repeat(shape.iter().product()).into();
            lowering.literal(&call.name, Literal { dtype: value.dtype, shape, bytes })
        }
        _ => lowering.fill(&call.name, value.dtype, shape, number)?,
    }])
}

pub(super) fn eye_like(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let dtype = match call.int("dtype", 0)? as i32 {
        0 => lowering.dtype(x),
        number => {
            dtype_of(number).ok_or_else(|| LowerError::Unsupported(format!("its dtype is type number {number}")))?
        }
    };
    let diagonal = call.int("k", 0)?;
    let Some(shape) = static_shape(lowering.shape(x)).filter(|s| s.len() == 2) else {
        return unsupported("its shape is not that of a matrix of fixed size");
    };
    let columns = shape[1];
    let ones = (0..shape[0] * columns).map(|i| (i % columns) as i64 - (i / columns) as i64 == diagonal);
    let tensor = match is_float(dtype) {
        true => Tensor::floats(dtype, shape, ones.map(|one| f64::from(u8::from(one)))),
        false => Tensor::ints(dtype, shape, ones.map(i64::from)),
    };
    Ok(vec![lowering.constant(&call.name, &tensor)])
}
