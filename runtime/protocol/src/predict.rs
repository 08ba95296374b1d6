//! KServe v1, which is also the protocol of TensorFlow Serving: `POST /v1/models/NAME:predict`.
//!
//! A request has rows (`instances`, answered by `predictions`) or columns (`inputs`, answered by
//! `outputs`). A request has no datatypes and no shapes: datatypes are those of the model, and
//! shapes follow from the nesting of arrays.

use crate::elements::decode;
use crate::error::ProtocolError;
use crate::infer::InferRequest;
use crate::json::{begins_with_special, from_body, special};
use crate::limits::{DATA_DEPTH_MAX, TENSORS_MAX};
use crate::model::TensorMetadata;
use crate::parameters::Parameters;
use crate::tensor::{Tensor, element_count};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// How a request arranges its values, and the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictForm {
    /// `instances`: a list of this many rows, each with all inputs.
    Rows(usize),
    /// `inputs`: each input as a whole.
    Columns,
}

/// A request of KServe v1, converted to one of v2.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictRequest {
    /// The form of the request and of its answer.
    pub form: PredictForm,
    /// The request.
    pub request: InferRequest,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    instances: Option<&'a RawValue>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(default)]
    parameters: Parameters,
}

impl PredictRequest {
    /// Decodes a body for a model with these inputs.
    ///
    /// # Errors
    /// If the body is not valid JSON, has both or neither of `instances` and `inputs`, names an
    /// input twice, names an input that the model does not have, or has arrays whose elements
    /// differ in shape.
    pub fn decode(body: &[u8], inputs: &[TensorMetadata]) -> Result<PredictRequest, ProtocolError> {
        let mut space = None;
        let Body { instances, inputs: columns, parameters } = from_body(body, &mut space)?;
        let (form, tensors) = match (instances, columns) {
            (Some(rows), None) => of_rows(rows, inputs)?,
            (None, Some(columns)) => (PredictForm::Columns, of_columns(columns, inputs)?),
            (None, None) => return Err(structure("it needs `instances` (rows) or `inputs` (columns)")),
            (Some(_), Some(_)) => return Err(structure("it has both `instances` and `inputs`; send one of them")),
        };
        let request = InferRequest { parameters, inputs: tensors, ..InferRequest::default() };
        Ok(PredictRequest { form, request })
    }
}

fn structure(reason: &str) -> ProtocolError {
    ProtocolError::Json(reason.into())
}

fn of_rows(rows: &RawValue, inputs: &[TensorMetadata]) -> Result<(PredictForm, Vec<Tensor>), ProtocolError> {
    let Some(first) = rows.get().strip_prefix('[') else { return Err(structure("`instances` is not a list of rows")) };
    let first = first.trim_start();
    if first.starts_with(']') {
        return Err(structure("`instances` has no rows"));
    }
    if first.starts_with('{') && !begins_with_special(first) {
        let (count, tensors) = NamedRows::read(rows, inputs)?;
        return Ok((PredictForm::Rows(count), tensors));
    }
    // Rows without names are the only input itself; its first dimension counts the rows.
    let tensor = tensor(only(inputs)?, rows)?;
    let count = tensor.shape.first().map_or(0, |count| *count as usize);
    Ok((PredictForm::Rows(count), vec![tensor]))
}

fn of_columns(columns: &RawValue, inputs: &[TensorMetadata]) -> Result<Vec<Tensor>, ProtocolError> {
    if !columns.get().starts_with('{') || begins_with_special(columns.get()) {
        return Ok(vec![tensor(only(inputs)?, columns)?]);
    }
    let Fields(fields) = serde_json::from_str(columns.get()).map_err(|error| ProtocolError::Json(error.to_string()))?;
    fields.into_iter().map(|(name, value)| tensor(of_name(inputs, &name)?, value)).collect()
}

fn tensor(input: &TensorMetadata, value: &RawValue) -> Result<Tensor, ProtocolError> {
    let shape = shape(&input.name, value)?;
    let bytes = decode(&input.name, input.datatype, element_count(&input.name, &shape)?, value)?;
    Tensor::new(input.name.clone(), input.datatype, shape, bytes)
}

/// The values of an object by name: at most [`TENSORS_MAX`]. A name that is given twice is an
/// error.
pub(crate) struct Fields<'a>(pub(crate) BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = BTreeMap<String, &'de RawValue>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a value for each input")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if fields.len() == TENSORS_MAX {
                        return Err(A::Error::custom(format_args!("more than {TENSORS_MAX} inputs")));
                    }
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format_args!("input `{name}` is given twice")));
                    }
                    fields.insert(name, map.next_value()?);
                }
                Ok(fields)
            }
        }

        Ok(Fields(deserializer.deserialize_map(Object)?))
    }
}

/// Rows that name their inputs. Each row is decoded while it is read, so that memory holds only the
/// elements of a long list of short rows.
struct NamedRows<'i> {
    inputs: &'i [TensorMetadata],
    count: usize,
    columns: BTreeMap<String, Column<'i>>,
    /// Why reading ended.
    mistake: Option<ProtocolError>,
}

/// One input of all rows.
struct Column<'i> {
    input: &'i TensorMetadata,
    rows: usize,
    /// The shape of each row.
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

impl<'i> NamedRows<'i> {
    /// The number of rows, and the tensors that they form.
    fn read(rows: &RawValue, inputs: &'i [TensorMetadata]) -> Result<(usize, Vec<Tensor>), ProtocolError> {
        let mut read = NamedRows { inputs, count: 0, columns: BTreeMap::new(), mistake: None };
        let result = serde_json::Deserializer::from_str(rows.get()).deserialize_seq(&mut read);
        result.map_err(|error| read.mistake.take().unwrap_or_else(|| ProtocolError::Json(error.to_string())))?;
        let tensor = |Column { input, rows, shape, bytes }| {
            let shape = [vec![rows as i64], shape].concat();
            Tensor::new(input.name.clone(), input.datatype, shape, bytes)
        };
        Ok((read.count, read.columns.into_values().map(tensor).collect::<Result<_, _>>()?))
    }

    fn add(&mut self, fields: BTreeMap<String, &RawValue>) -> Result<(), ProtocolError> {
        let at = self.count;
        for (name, value) in fields {
            let of_row = shape(&name, value)?;
            if at == 0 {
                let column =
                    Column { input: of_name(self.inputs, &name)?, rows: 0, shape: of_row.clone(), bytes: Vec::new() };
                self.columns.insert(name.clone(), column);
            }
            let Some(column) = self.columns.get_mut(&name) else {
                return Err(structure(&format!("row {at} of `instances` has other inputs than the rows before")));
            };
            if of_row != column.shape {
                let wanted = &column.shape;
                let reason = format!("row {at} of `instances` has shape {of_row:?}, and row 0 has {wanted:?}");
                return Err(ProtocolError::tensor(&name, reason));
            }
            column.bytes.extend(decode(&name, column.input.datatype, element_count(&name, &of_row)?, value)?);
            column.rows += 1;
        }
        self.count += 1;
        match self.columns.iter().find(|(_, column)| column.rows != self.count) {
            Some((name, _)) => Err(structure(&format!("row {at} of `instances` has no `{name}`, as other rows have"))),
            None => Ok(()),
        }
    }
}

impl<'de> Visitor<'de> for &mut NamedRows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(Fields(fields)) = rows.next_element()? {
            if let Err(mistake) = self.add(fields) {
                self.mistake = Some(mistake);
                return Err(A::Error::custom("a row is wrong"));
            }
        }
        Ok(())
    }
}

/// The input of a request without names. An error unless the model has exactly one input.
fn only(inputs: &[TensorMetadata]) -> Result<&TensorMetadata, ProtocolError> {
    match inputs {
        [input] => Ok(input),
        _ => {
            let names = names(inputs);
            Err(structure(&format!("the model has the inputs {names}; name each value, as in {{\"NAME\": VALUE}}")))
        }
    }
}

fn of_name<'i>(inputs: &'i [TensorMetadata], name: &str) -> Result<&'i TensorMetadata, ProtocolError> {
    let unknown = || ProtocolError::tensor(name, format!("the model has no such input; it has {}", names(inputs)));
    inputs.iter().find(|input| input.name == name).ok_or_else(unknown)
}

fn names(inputs: &[TensorMetadata]) -> String {
    inputs.iter().map(|input| format!("`{}`", input.name)).collect::<Vec<_>>().join(", ")
}

/// The shape of nested arrays.
pub(crate) fn shape(name: &str, value: &RawValue) -> Result<Vec<i64>, ProtocolError> {
    let read = Shape { depth: 0 }.deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    read.map_err(|error| ProtocolError::tensor(name, format!("cannot read its values: {error}")))
}

struct Shape {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Shape {
    type Value = Vec<i64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<i64>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Shape {
    type Value = Vec<i64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("elements or arrays of them")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }

    fn visit_str<E>(self, _: &str) -> Result<Vec<i64>, E> {
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<i64>, A::Error> {
        special(&mut map, &self).map(|_| Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<i64>, A::Error> {
        if self.depth == DATA_DEPTH_MAX {
            return Err(A::Error::custom(format_args!("nested deeper than {DATA_DEPTH_MAX} arrays")));
        }
        let (mut first, mut count) = (None, 0_i64);
        while let Some(shape) = sequence.next_element_seed(Shape { depth: self.depth + 1 })? {
            let wanted = first.get_or_insert_with(|| shape.clone());
            if shape != *wanted {
                return Err(A::Error::custom(format_args!(
                    "element {count} of an array has shape {shape:?}, and element 0 has {wanted:?}"
                )));
            }
            count += 1;
        }
        let mut shape = vec![count];
        shape.extend(first.unwrap_or_default());
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datatype::DataType;

    fn inputs(names: &[&str]) -> Vec<TensorMetadata> {
        let input = |name: &&str| TensorMetadata {
            name: (*name).into(),
            datatype: DataType::Fp32,
            shape: vec![-1, 2],
            symbols: Vec::new(),
        };
        names.iter().map(input).collect()
    }

    fn read(json: &str, names: &[&str]) -> Result<(PredictForm, Vec<Tensor>), String> {
        let read = PredictRequest::decode(json.as_bytes(), &inputs(names)).map_err(|error| error.to_string())?;
        Ok((read.form, read.request.inputs))
    }

    fn tensor(name: &str, shape: &[i64], values: &[f64]) -> Tensor {
        Tensor::from_f64(name, DataType::Fp32, shape.into(), values).unwrap()
    }

    #[test]
    fn rows_and_columns_are_the_same_tensors() {
        let expected = vec![tensor("a", &[2, 2], &[1.0, 2.0, 3.0, 4.0])];
        for (json, form) in [
            (r#"{"instances": [[1, 2], [3, 4]]}"#, PredictForm::Rows(2)),
            (r#"{"instances": [{"a": [1, 2]}, {"a": [3, 4.0]}]}"#, PredictForm::Rows(2)),
            (r#"{"inputs": [[1, 2], [3, 4]], "signature_name": "x"}"#, PredictForm::Columns),
            (r#"{"inputs": {"a": [[1, 2], [3, 4]]}}"#, PredictForm::Columns),
        ] {
            assert_eq!(read(json, &["a"]), Ok((form, expected.clone())), "{json}");
        }
        let two = vec![tensor("a", &[2], &[1.0, 3.0]), tensor("b", &[2, 1], &[2.0, 4.0])];
        for json in [
            r#"{"instances": [{"a": 1, "b": [2]}, {"b": [4], "a": 3}]}"#,
            r#"{"inputs": {"b": [[2], [4]], "a": [1, 3]}}"#,
        ] {
            assert_eq!(read(json, &["a", "b"]).unwrap().1, two, "{json}");
        }
        let parameters = r#"{"instances": [1], "parameters": {"priority": 1}}"#;
        let read = PredictRequest::decode(parameters.as_bytes(), &inputs(&["a"])).unwrap();
        assert_eq!(read.request.parameters.unsigned("priority"), Ok(Some(1)));
    }

    #[test]
    fn numbers_that_are_not_finite_are_read() {
        assert_eq!(read(r#"{"instances": [Infinity, 1]}"#, &["a"]).unwrap().1[0].shape, [2]);
        assert!(read(r#"{"inputs": NaN}"#, &["a"]).unwrap().1[0].shape.is_empty());
        for json in [
            r#"{"instances": [[NaN, 1], [-Infinity, Infinity]]}"#,
            r#"{"instances": [{"a": [NaN, 1]}, {"a": [-Infinity, Infinity]}]}"#,
            r#"{"inputs": {"a": [[NaN, 1], [-Infinity, Infinity]]}}"#,
        ] {
            let tensors = read(json, &["a"]).unwrap().1;
            let values = crate::elements::to_f64(DataType::Fp32, &tensors[0].bytes);
            assert!(values[0].is_nan(), "{json}");
            assert_eq!((&*tensors[0].shape, &values[1..]), (&[2, 2][..], &[1.0, f64::NEG_INFINITY, f64::INFINITY][..]));
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let deep = format!(r#"{{"inputs": {}1{}}}"#, "[".repeat(17), "]".repeat(17));
        let many: Vec<String> = (0..=TENSORS_MAX).map(|at| format!(r#""i{at}": 1"#)).collect();
        let many = format!(r#"{{"instances": [{{{}}}]}}"#, many.join(","));
        for (json, expected) in [
            ("{}", "needs `instances` (rows) or `inputs` (columns)"),
            (r#"{"instances": [1], "inputs": [1]}"#, "both"),
            (r#"{"instances": []}"#, "no rows"),
            (r#"{"instances": 1}"#, "`instances` is not a list of rows"),
            (r#"{"instances": [ ]}"#, "no rows"),
            (r#"{"instances": [{"a": 1, "a": 2}]}"#, "input `a` is given twice"),
            (r#"{"inputs": {"a": [1], "a": [2]}}"#, "input `a` is given twice"),
            (r#"{"instances": [{"a": 1, "b": 2}, 3]}"#, "an object with a value for each input"),
            (many.as_str(), "more than 1024 inputs"),
            (r#"{"instances": [1, 2]}"#, "the model has the inputs `a`, `b`; name each value"),
            (r#"{"instances": [{"a": 1, "b": 2}, {"a": 1}]}"#, "row 1 of `instances` has no `b`"),
            (r#"{"instances": [{"a": 1}, {"a": 1, "b": 2}]}"#, "row 1 of `instances` has other inputs"),
            (r#"{"instances": [{"a": [1]}, {"a": [1, 2]}]}"#, "row 1 of `instances` has shape [2], and row 0 has [1]"),
            (r#"{"inputs": {"a": [[1], [2, 3]]}}"#, "element 1 of an array has shape [2], and element 0 has [1]"),
            (r#"{"inputs": {"c": 1}}"#, "tensor `c`: the model has no such input; it has `a`, `b`"),
            (r#"{"inputs": {"a": ["x"]}}"#, "\"x\" is not a valid FP32"),
            (r#"{"inputs": {"a": {"b64": "AA=="}}}"#, "map"),
            (deep.as_str(), "the model has the inputs"),
        ] {
            let error = read(json, &["a", "b"]).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
        let error = read(r#"{"instances": [[1], {"a": [2]}]}"#, &["a"]).unwrap_err();
        assert!(error.contains("map"), "{error}");
        let error = read(r#"{"instances": [[1], [2, 3]]}"#, &["a"]).unwrap_err();
        assert!(error.contains("element 1 of an array has shape [2], and element 0 has [1]"), "{error}");
        let error = read(&deep, &["a"]).unwrap_err();
        assert!(error.contains("nested deeper than 16"), "{error}");
    }
}
