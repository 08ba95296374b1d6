//! Labels of classes, and tables from one value to another.

use super::super::super::call::Call;
use super::super::super::error::{LowerError, LowerResult, invalid};
use super::super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::{Tensor, is_float};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

/// The labels of the classes of a classifier.
pub(super) struct Labels {
    /// I64 or strings.
    pub(super) dtype: DType,
    /// The labels; codes of strings.
    pub(super) values: Vec<i64>,
}

impl Labels {
    /// The labels from the attribute that the node has; none if it has neither.
    pub(super) fn of(lowering: &mut Lowering, call: &Call<'_>, ints: &str, strings: &str) -> LowerResult<Labels> {
        if let Some(texts) = call.strings(strings)?.filter(|texts| !texts.is_empty()) {
            let values = texts.iter().map(|text| lowering.string_code(text)).collect::<LowerResult<_>>()?;
            return Ok(Labels { dtype: DType::Strings, values });
        }
        Ok(Labels { dtype: DType::I64, values: call.ints(ints)?.unwrap_or_default() })
    }

    /// All labels as a vector.
    pub(super) fn tensor(&self) -> Tensor {
        Tensor::ints(self.dtype, vec![self.values.len()], self.values.iter().copied())
    }
}

/// Looks up each element among the keys; the first equal key gives the value. From version 4 on a
/// NaN is equal to a NaN. Version 1 has the names of classes, whose numbers are their positions.
pub(in super::super) fn label_encoder(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (keys, values) = match call.strings("classes_strings")? {
        Some(classes) => classes_of(lowering, call, &classes, None)?,
        None => (table(lowering, call, "keys")?, table(lowering, call, "values")?),
    };
    let other = default(lowering, call, values.dtype)?;
    look_up(lowering, call, keys, values, other)
}

/// Converts between the names of categories and their numbers.
pub(in super::super) fn category_mapper(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let names = call.strings("cats_strings")?.unwrap_or_default();
    let (keys, values) = classes_of(lowering, call, &names, Some(call.required_ints("cats_int64s")?))?;
    let other = default(lowering, call, values.dtype)?;
    look_up(lowering, call, keys, values, other)
}

/// Keys and values: from names to numbers if the operand has strings, otherwise the other way.
fn classes_of(
    lowering: &mut Lowering,
    call: &Call<'_>,
    names: &[String],
    numbers: Option<Vec<i64>>,
) -> LowerResult<(Tensor, Tensor)> {
    let numbers = numbers.unwrap_or_else(|| (0..names.len() as i64).collect());
    let names = lowering.strings(names)?;
    let numbers = Tensor::ints(DType::I64, vec![numbers.len()], numbers);
    Ok(if lowering.has_strings(call.input(0)?) { (names, numbers) } else { (numbers, names) })
}

fn look_up(lowering: &mut Lowering, call: &Call<'_>, keys: Tensor, values: Tensor, other: Tensor) -> Results {
    let x = call.input(0)?;
    let key_ty = lowering.dtype(x);
    if keys.dtype != key_ty || keys.len() != values.len() {
        return invalid(format!(
            "it has {} keys of type {:?} and {} values, for elements of type {key_ty:?}",
            keys.len(),
            keys.dtype,
            values.len()
        ));
    }
    let (count, dtype, shape) = (keys.len() as i64, values.dtype, lowering.shape(x).to_vec());
    let operands = [("keys", keys), ("values", values), ("default", other)]
        .map(|(what, tensor)| lowering.constant(&format!("{}.{what}", call.name), &tensor));
    let mut nest = NestBuilder::new("label_encoder", shape.clone());
    nest.by_rows(1);
    let point = nest.point();
    let at = nest.offset(&shape, &point);
    let x_value = nest.load(0, key_ty, &at);
    let first = nest.load(3, dtype, &0.into());
    let result = nest.variable(dtype, &first);
    let searching = nest.variable(DType::Bool, &NestArg::Const(1.0));
    nest.count_while(&0.into(), &count.into(), &searching, |nest, i| {
        let key = nest.load(1, key_ty, i);
        let is_key = same(nest, key_ty, &x_value, &key, call.opset >= 4);
        nest.when(&is_key, |nest| {
            let value = nest.load(2, dtype, i);
            nest.set(&result, &value);
            nest.set(&searching, &NestArg::Const(0.0));
        });
    });
    nest.store(0, &at, &result);
    let inputs = [&[x][..], &operands].concat();
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &inputs, dtype, shape)?])
}

fn same(nest: &mut NestBuilder, ty: DType, a: &NestArg, b: &NestArg, nan_is_nan: bool) -> NestArg {
    let equal = nest.compare(PointOp::Equal, ty, a, b);
    if !is_float(ty) || !nan_is_nan {
        return equal;
    }
    let [a_is_nan, b_is_nan] = [a, b].map(|x| {
        let is_number = nest.compare(PointOp::Equal, ty, x, x);
        nest.step(PointOp::Not, DType::Bool, &[is_number])
    });
    let both = nest.both(&a_is_nan, &b_is_nan);
    nest.step(PointOp::Or, DType::Bool, &[equal, both])
}

/// The keys or values, from the attribute that the node has.
fn table(lowering: &mut Lowering, call: &Call<'_>, what: &str) -> LowerResult<Tensor> {
    if let Some(tensor) = call.tensor(&format!("{what}_tensor"))? {
        return tensor_of(lowering.attribute_tensor(tensor, &call.name)?);
    }
    if let Some(texts) = call.strings(&format!("{what}_strings"))? {
        return lowering.strings(&texts);
    }
    if let Some(values) = call.ints(&format!("{what}_int64s"))? {
        return Ok(Tensor::ints(DType::I64, vec![values.len()], values));
    }
    match call.floats(&format!("{what}_floats"))? {
        Some(values) => Ok(Tensor::floats(DType::F32, vec![values.len()], values.into_iter().map(f64::from))),
        None => invalid(format!("it has no {what}")),
    }
}

fn tensor_of(literal: super::super::super::read::Literal) -> LowerResult<Tensor> {
    let tensor = Tensor::from_bytes(literal.dtype, &literal.shape, &literal.bytes);
    tensor.ok_or_else(|| LowerError::Invalid("the number of bytes of its tensor does not match its shape".into()))
}

/// The value for an element without a key.
fn default(lowering: &mut Lowering, call: &Call<'_>, dtype: DType) -> LowerResult<Tensor> {
    if let Some(tensor) = call.tensor("default_tensor")? {
        let tensor = tensor_of(lowering.attribute_tensor(tensor, &call.name)?)?;
        return if tensor.dtype == dtype && tensor.len() == 1 {
            Ok(tensor)
        } else {
            invalid("its default is not one value of the values' type")
        };
    }
    Ok(match dtype {
        DType::Strings => lowering.strings(&[call.string("default_string", "_Unused")?])?,
        dtype if is_float(dtype) => Tensor::floats(dtype, vec![1], [f64::from(call.float("default_float", -0.0)?)]),
        dtype => Tensor::ints(dtype, vec![1], [call.int("default_int64", -1)?]),
    })
}
