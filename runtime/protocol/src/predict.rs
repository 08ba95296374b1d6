//! The first version of KServe's protocol, which is also that of TensorFlow Serving:
//! `POST /v1/models/NAME:predict`.
//!
//! A request has rows (`instances`, answered by `predictions`) or columns (`inputs`, answered by
//! `outputs`). Types are not part of it: they are those of the model, and shapes follow from the
//! nesting of arrays.

use crate::elements::{JsonElements, decode};
use crate::error::ProtocolError;
use crate::infer::{InferRequest, InferResponse};
use crate::limits::{DATA_DEPTH_MAX, TENSORS_MAX};
use crate::model::TensorMetadata;
use crate::parameters::Parameters;
use crate::tensor::{Tensor, element_count};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// How a request arranges its values, and the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictForm {
    /// A list of rows, each with all inputs: `instances`. The number is that of the rows.
    Rows(usize),
    /// Whole inputs: `inputs`.
    Columns,
}

/// A request, as one of the second version.
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
    instances: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(default)]
    parameters: Parameters,
}

impl PredictRequest {
    /// Decodes a body for a model with these inputs.
    ///
    /// # Errors
    /// The body is not valid JSON, has neither or both of `instances` and `inputs`, names an input
    /// that the model does not have, or has arrays whose elements differ in shape.
    pub fn decode(body: &[u8], inputs: &[TensorMetadata]) -> Result<PredictRequest, ProtocolError> {
        let Body { instances, inputs: columns, parameters } =
            serde_json::from_slice(body).map_err(|error| ProtocolError::Json(error.to_string()))?;
        let (form, tensors) = match (instances, columns) {
            (Some(rows), None) => (PredictForm::Rows(rows.len()), of_rows(&rows, inputs)?),
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

fn of_rows(rows: &[&RawValue], inputs: &[TensorMetadata]) -> Result<Vec<Tensor>, ProtocolError> {
    let Some(first) = rows.first() else { return Err(structure("`instances` has no rows")) };
    if !is_object(first) {
        return Ok(vec![stack(only(inputs)?, rows)?]);
    }
    let mut columns: BTreeMap<String, Vec<&RawValue>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        let fields: BTreeMap<String, &RawValue> = fields(row)?;
        for (name, value) in fields {
            let column = columns.entry(name).or_default();
            if column.len() != at {
                return Err(structure(&format!("row {at} of `instances` has other inputs than the rows before")));
            }
            column.push(value);
        }
    }
    if let Some((name, column)) = columns.iter().find(|(_, column)| column.len() != rows.len()) {
        return Err(structure(&format!("row {} of `instances` has no `{name}`, as other rows have", column.len())));
    }
    check_count(columns.len())?;
    columns.iter().map(|(name, rows)| stack(of_name(inputs, name)?, rows)).collect()
}

fn of_columns(columns: &RawValue, inputs: &[TensorMetadata]) -> Result<Vec<Tensor>, ProtocolError> {
    let tensor = |input: &TensorMetadata, value: &RawValue| {
        let shape = shape(&input.name, value)?;
        let bytes = decode(&input.name, input.datatype, element_count(&input.name, &shape)?, value)?;
        Tensor::new(input.name.clone(), input.datatype, shape, bytes)
    };
    if !is_object(columns) {
        return Ok(vec![tensor(only(inputs)?, columns)?]);
    }
    let fields = fields(columns)?;
    check_count(fields.len())?;
    fields.into_iter().map(|(name, value)| tensor(of_name(inputs, &name)?, value)).collect()
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

fn fields(value: &RawValue) -> Result<BTreeMap<String, &RawValue>, ProtocolError> {
    serde_json::from_str(value.get()).map_err(|error| ProtocolError::Json(error.to_string()))
}

fn check_count(count: usize) -> Result<(), ProtocolError> {
    if count > TENSORS_MAX {
        return Err(ProtocolError::TooMany { what: "inputs", count, most: TENSORS_MAX });
    }
    Ok(())
}

/// The input of a request that names none.
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

/// The tensor whose rows these are.
fn stack(input: &TensorMetadata, rows: &[&RawValue]) -> Result<Tensor, ProtocolError> {
    let name = &input.name;
    let (mut first, mut bytes) = (None, Vec::new());
    for (at, row) in rows.iter().enumerate() {
        let of_row = shape(name, row)?;
        let wanted = first.get_or_insert_with(|| of_row.clone());
        if of_row != *wanted {
            return Err(ProtocolError::tensor(
                name,
                format!("row {at} of `instances` has shape {of_row:?}, and row 0 has {wanted:?}"),
            ));
        }
        bytes.extend(decode(name, input.datatype, element_count(name, &of_row)?, row)?);
    }
    let mut shape = vec![rows.len() as i64];
    shape.extend(first.unwrap_or_default());
    Tensor::new(name.clone(), input.datatype, shape, bytes)
}

/// The shape of nested arrays.
fn shape(name: &str, value: &RawValue) -> Result<Vec<i64>, ProtocolError> {
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

#[derive(serde::Serialize)]
enum Answer<'a> {
    #[serde(rename = "predictions")]
    Rows(Rows<'a>),
    #[serde(rename = "outputs")]
    Columns(Columns<'a>),
}

/// Encodes the answer to a request of this form, as JSON.
///
/// # Errors
/// The request has rows, and an output does not have one for each of them; or an output is text.
pub fn encode_predictions(form: PredictForm, answer: &InferResponse) -> Result<Vec<u8>, ProtocolError> {
    let tensors: Vec<&Tensor> = answer.outputs.iter().map(|output| &output.tensor).collect();
    for tensor in &tensors {
        if tensor.datatype.element_bytes().is_none() {
            return Err(ProtocolError::tensor(
                &tensor.name,
                "is text, which this version of the protocol does not send",
            ));
        }
        if let PredictForm::Rows(rows) = form
            && tensor.shape.first() != Some(&(rows as i64))
        {
            let reason = format!(
                "has shape {:?}, not one row for each of the {rows} `instances`; send `inputs` instead",
                tensor.shape
            );
            return Err(ProtocolError::tensor(&tensor.name, reason));
        }
    }
    let answer = match form {
        PredictForm::Rows(rows) => Answer::Rows(Rows { rows, tensors: &tensors }),
        PredictForm::Columns => Answer::Columns(Columns(&tensors)),
    };
    serde_json::to_vec(&answer).map_err(|error| ProtocolError::Json(error.to_string()))
}

/// One element for each row: the row of the only output, or of each output by name.
struct Rows<'a> {
    rows: usize,
    tensors: &'a [&'a Tensor],
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.tensors {
            [tensor] => Nested::of(tensor).serialize(serializer),
            tensors => serializer.collect_seq((0..self.rows).map(|row| Row { row, tensors })),
        }
    }
}

struct Row<'a> {
    row: usize,
    tensors: &'a [&'a Tensor],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.tensors.iter().map(|tensor| (&tensor.name, Nested::of(tensor).part(self.row))))
    }
}

/// The only output, or all outputs by name.
struct Columns<'a>(&'a [&'a Tensor]);

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [tensor] => Nested::of(tensor).serialize(serializer),
            tensors => {
                let mut map = serializer.serialize_map(Some(tensors.len()))?;
                tensors.iter().try_for_each(|tensor| map.serialize_entry(&tensor.name, &Nested::of(tensor)))?;
                map.end()
            }
        }
    }
}

/// Elements as arrays that are nested like the shape.
struct Nested<'a> {
    tensor: &'a Tensor,
    shape: &'a [i64],
    bytes: &'a [u8],
}

impl<'a> Nested<'a> {
    fn of(tensor: &'a Tensor) -> Nested<'a> {
        Nested { tensor, shape: &tensor.shape, bytes: &tensor.bytes }
    }

    /// The element at this index of the outermost dimension.
    fn part(&self, index: usize) -> Nested<'a> {
        let count = self.shape.first().map_or(1, |count| *count as usize);
        let size = self.bytes.len().checked_div(count).unwrap_or(0);
        Nested { tensor: self.tensor, shape: &self.shape[1..], bytes: &self.bytes[index * size..(index + 1) * size] }
    }
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let elements = JsonElements { datatype: self.tensor.datatype, bytes: self.bytes };
        match self.shape {
            [] => {
                // A list of one element, without its brackets.
                let list = serde_json::to_string(&elements).map_err(S::Error::custom)?;
                let element = list.trim_matches(['[', ']']).to_owned();
                RawValue::from_string(element).map_err(S::Error::custom)?.serialize(serializer)
            }
            [_] => elements.serialize(serializer),
            [count, ..] => serializer.collect_seq((0..*count as usize).map(|index| self.part(index))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datatype::DataType;
    use crate::infer::OutputTensor;

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
    fn mistakes_are_named_with_their_place() {
        let deep = format!(r#"{{"inputs": {}1{}}}"#, "[".repeat(17), "]".repeat(17));
        for (json, expected) in [
            ("{}", "needs `instances` (rows) or `inputs` (columns)"),
            (r#"{"instances": [1], "inputs": [1]}"#, "both"),
            (r#"{"instances": []}"#, "no rows"),
            (r#"{"instances": 1}"#, "expected a sequence"),
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
        let error = read(&deep, &["a"]).unwrap_err();
        assert!(error.contains("nested deeper than 16"), "{error}");
    }

    #[test]
    fn answers_have_the_form_of_their_requests() {
        let answer = |tensors: Vec<Tensor>| InferResponse {
            outputs: tensors.into_iter().map(|tensor| OutputTensor { tensor, binary: false }).collect(),
            ..InferResponse::default()
        };
        let write = |form, tensors| {
            let json = encode_predictions(form, &answer(tensors)).map_err(|error| error.to_string())?;
            Ok::<_, String>(String::from_utf8(json).unwrap())
        };
        let matrix = || tensor("m", &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
        let list = || tensor("l", &[2], &[5.0, 6.0]);
        let rows = PredictForm::Rows(2);
        for (form, tensors, expected) in [
            (rows, vec![matrix()], r#"{"predictions":[[[1.0,2.0]],[[3.0,4.0]]]}"#),
            (rows, vec![list()], r#"{"predictions":[5.0,6.0]}"#),
            (rows, vec![matrix(), list()], r#"{"predictions":[{"m":[[1.0,2.0]],"l":5.0},{"m":[[3.0,4.0]],"l":6.0}]}"#),
            (PredictForm::Columns, vec![matrix()], r#"{"outputs":[[[1.0,2.0]],[[3.0,4.0]]]}"#),
            (
                PredictForm::Columns,
                vec![matrix(), list()],
                r#"{"outputs":{"m":[[[1.0,2.0]],[[3.0,4.0]]],"l":[5.0,6.0]}}"#,
            ),
            (PredictForm::Columns, vec![tensor("s", &[], &[0.1])], r#"{"outputs":0.1}"#),
            (PredictForm::Columns, vec![tensor("e", &[0, 2], &[])], r#"{"outputs":[]}"#),
        ] {
            assert_eq!(write(form, tensors).as_deref(), Ok(expected));
        }
        let error = write(PredictForm::Rows(3), vec![list()]).unwrap_err();
        assert!(error.contains("tensor `l`: has shape [2], not one row for each of the 3"), "{error}");
    }
}
