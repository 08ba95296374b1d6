//! Labels of classes, and tables from one value to another.

use super::super::super::call::Call;
use super::super::super::error::{LowerError, LowerResult, invalid};
use super::super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor::{Data, Tensor, is_float};
use crate::tensor_graph::{Op, PointOp, ValueId};
use atoll_kgraph::DType;
use std::cmp::Ordering;

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

/// Looks up each element among the keys, by halves; the first equal key gives the value. From
/// version 4 on a NaN is equal to a NaN. Version 1 has the names of classes, whose numbers are their
/// positions.
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
    let (dtype, shape) = (values.dtype, lowering.shape(x).to_vec());
    let sorted = Sorted::of(&keys, &values, call.opset >= 4);
    let (count, of_nan) = (sorted.keys.len(), sorted.of_nan);
    let operands = [("keys", sorted.keys), ("values", sorted.values), ("default", other)]
        .map(|(what, tensor)| lowering.constant(&format!("{}.{what}", call.name), &tensor));
    let mut nest = NestBuilder::new("label_encoder", shape.clone());
    nest.by_rows(1);
    let point = nest.point();
    let at = nest.offset(&shape, &point);
    let x_value = nest.load(0, key_ty, &at);
    let first = nest.load(3, dtype, &0.into());
    let result = nest.variable(dtype, &first);
    if count > 0 {
        let place = search(&mut nest, key_ty, &x_value, count);
        let key = nest.load(1, key_ty, &place);
        let is_key = nest.compare(PointOp::Equal, key_ty, &x_value, &key);
        nest.when(&is_key, |nest| {
            let value = nest.load(2, dtype, &place);
            nest.set(&result, &value);
        });
    }
    if let Some(place) = of_nan {
        let is_number = nest.compare(PointOp::Equal, key_ty, &x_value, &x_value);
        nest.choose(
            &is_number,
            |_| {},
            |nest| {
                let value = nest.load(2, dtype, &(place as i64).into());
                nest.set(&result, &value);
            },
        );
    }
    nest.store(0, &at, &result);
    let inputs = [&[x][..], &operands].concat();
    Ok(vec![lowering.emit_one(&call.name, Op::Nest(nest.finish()), &inputs, dtype, shape)?])
}

/// A table by ascending keys. Of equal keys it has the first one. The codes of strings have an
/// order, too.
struct Sorted {
    keys: Tensor,
    /// The values of the keys, and possibly of NaN behind them.
    values: Tensor,
    /// The place of NaN's value, if NaN is a key and equal to itself.
    of_nan: Option<usize>,
}

impl Sorted {
    fn of(keys: &Tensor, values: &Tensor, nan_is_nan: bool) -> Sorted {
        let is_nan = |key: usize| matches!(&keys.data, Data::Float(elements) if elements[key].is_nan());
        let order = |a: &usize, b: &usize| match &keys.data {
            Data::Float(elements) => elements[*a].partial_cmp(&elements[*b]).unwrap_or(Ordering::Equal),
            // U64 has the bits of its numbers.
            Data::Int(elements) if keys.dtype == DType::U64 => (elements[*a] as u64).cmp(&(elements[*b] as u64)),
            Data::Int(elements) => elements[*a].cmp(&elements[*b]),
        };
        let mut places: Vec<usize> = (0..keys.len()).filter(|key| !is_nan(*key)).collect();
        places.sort_by(order);
        places.dedup_by(|later, first| order(later, first).is_eq());
        let nan = (0..keys.len()).find(|key| is_nan(*key)).filter(|_| nan_is_nan);
        let picked = |tensor: &Tensor, places: &[usize]| {
            tensor.pick(vec![places.len()], 0.0, places.iter().map(|place| Some(*place)))
        };
        let with_nan: Vec<usize> = places.iter().copied().chain(nan).collect();
        let of_nan = nan.map(|_| places.len());
        Sorted { keys: picked(keys, &places), values: picked(values, &with_nan), of_nan }
    }
}

/// The place of the last of `count` ascending keys that is not above a value; 0 if all are.
fn search(nest: &mut NestBuilder, ty: DType, x: &NestArg, count: usize) -> NestArg {
    let low = nest.variable(DType::I32, &0.into());
    let high = nest.variable(DType::I32, &(count as i64).into());
    // Each step halves the keys between the two, until one is left.
    let steps = count.next_power_of_two().trailing_zeros();
    nest.count(&0.into(), &i64::from(steps).into(), |nest, _| {
        let sum = nest.add(&low, &high);
        let middle = nest.div(&sum, &2.into());
        let key = nest.load(1, ty, &middle);
        let is_reached = nest.compare(PointOp::LessOrEqual, ty, &key, x);
        let from = nest.select(DType::I32, &is_reached, &middle, &low);
        let to = nest.select(DType::I32, &is_reached, &high, &middle);
        nest.set(&low, &from);
        nest.set(&high, &to);
    });
    low
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_and_the_first_of_equal_ones_counts() {
        let values = Tensor::ints(DType::I64, vec![5], 1..6);
        let keys = Tensor::floats(DType::F32, vec![5], [2.0, f64::NAN, -1.0, 2.0, f64::NAN]);
        let sorted = Sorted::of(&keys, &values, true);
        assert_eq!(sorted.keys.to_f64(), [-1.0, 2.0]);
        assert_eq!((sorted.values.to_f64(), sorted.of_nan), (vec![3.0, 1.0, 2.0], Some(2)));
        let sorted = Sorted::of(&keys, &values, false);
        assert_eq!((sorted.values.to_f64(), sorted.of_nan), (vec![3.0, 1.0], None), "NaN is no key");
        let keys = Tensor::ints(DType::U64, vec![5], [-1, 1, i64::MIN, 0, 1]);
        assert_eq!(Sorted::of(&keys, &values, true).values.to_f64(), [4.0, 2.0, 3.0, 1.0]);
    }
}
