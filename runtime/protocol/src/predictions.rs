//! Answers of KServe v1, in the form of their requests.

use crate::datatype::DataType;
use crate::elements::{FirstElement, JsonElements};
use crate::error::ProtocolError;
use crate::infer::InferResponse;
use crate::json::to_vec;
use crate::predict::PredictForm;
use crate::tensor::{Tensor, check_text, strings};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;

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
/// If the request has rows and an output does not have one row for each of them, or a string of an
/// output is not UTF-8.
pub fn encode_predictions(form: PredictForm, answer: &InferResponse) -> Result<Vec<u8>, ProtocolError> {
    answer.outputs.iter().map(|output| &output.tensor).try_for_each(check_text)?;
    let tensors: Vec<Readable<'_>> = answer.outputs.iter().map(|output| Readable::of(&output.tensor)).collect();
    for Readable { tensor, .. } in &tensors {
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
    to_vec(&answer).map_err(|error| ProtocolError::Json(error.to_string()))
}

/// An output, and its strings if it has strings.
struct Readable<'a> {
    tensor: &'a Tensor,
    texts: Vec<Cow<'a, str>>,
}

impl<'a> Readable<'a> {
    fn of(tensor: &'a Tensor) -> Readable<'a> {
        let texts = match tensor.datatype {
            DataType::Bytes => strings(&tensor.bytes).flatten().map(String::from_utf8_lossy).collect(),
            _ => Vec::new(),
        };
        Readable { tensor, texts }
    }
}

/// One element for each row: the row of the only output, or of each output by name.
struct Rows<'a> {
    rows: usize,
    tensors: &'a [Readable<'a>],
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
    tensors: &'a [Readable<'a>],
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.tensors.iter().map(|it| (&it.tensor.name, Nested::of(it).part(self.row))))
    }
}

/// The only output, or all outputs by name.
struct Columns<'a>(&'a [Readable<'a>]);

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            [tensor] => Nested::of(tensor).serialize(serializer),
            tensors => {
                let mut map = serializer.serialize_map(Some(tensors.len()))?;
                tensors.iter().try_for_each(|it| map.serialize_entry(&it.tensor.name, &Nested::of(it)))?;
                map.end()
            }
        }
    }
}

/// Elements as arrays that are nested like the shape.
struct Nested<'a> {
    datatype: DataType,
    shape: &'a [i64],
    elements: Elements<'a>,
}

enum Elements<'a> {
    Numbers(&'a [u8]),
    Texts(&'a [Cow<'a, str>]),
}

impl<'a> Nested<'a> {
    fn of(Readable { tensor, texts }: &'a Readable<'a>) -> Nested<'a> {
        let elements = match tensor.datatype {
            DataType::Bytes => Elements::Texts(texts),
            _ => Elements::Numbers(&tensor.bytes),
        };
        Nested { datatype: tensor.datatype, shape: &tensor.shape, elements }
    }

    /// The element at this index of the outermost dimension.
    fn part(&self, index: usize) -> Nested<'a> {
        let count = self.shape.first().map_or(1, |count| *count as usize);
        let elements = match self.elements {
            Elements::Numbers(bytes) => Elements::Numbers(part(bytes, index, count)),
            Elements::Texts(texts) => Elements::Texts(part(texts, index, count)),
        };
        Nested { datatype: self.datatype, shape: &self.shape[1..], elements }
    }
}

/// Part `index` of `count` equal parts.
fn part<T>(whole: &[T], index: usize, count: usize) -> &[T] {
    let size = whole.len().checked_div(count).unwrap_or(0);
    &whole[index * size..(index + 1) * size]
}

/// The elements as a flat list.
struct List<'a, 'b>(&'b Nested<'a>);

impl Serialize for List<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.elements {
            Elements::Numbers(bytes) => JsonElements { datatype: self.0.datatype, bytes }.serialize(serializer),
            Elements::Texts(texts) => serializer.collect_seq(texts),
        }
    }
}

impl Serialize for Nested<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let elements = List(self);
        match self.shape {
            [] => match self.elements {
                Elements::Numbers(bytes) => {
                    FirstElement(JsonElements { datatype: self.datatype, bytes }).serialize(serializer)
                }
                Elements::Texts(texts) => texts.first().serialize(serializer),
            },
            [_] => elements.serialize(serializer),
            [count, ..] => serializer.collect_seq((0..*count as usize).map(|index| self.part(index))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::OutputTensor;

    fn tensor(name: &str, shape: &[i64], values: &[f64]) -> Tensor {
        Tensor::from_f64(name, DataType::Fp32, shape.into(), values).unwrap()
    }

    #[test]
    fn answers_have_the_form_of_their_requests() {
        let answer = |tensors: Vec<Tensor>| InferResponse {
            outputs: tensors.into_iter().map(|tensor| OutputTensor { tensor, binary: false, shared: None }).collect(),
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
            (rows, vec![tensor("s", &[2], &[f64::NAN, f64::INFINITY])], r#"{"predictions":[NaN,Infinity]}"#),
            (PredictForm::Columns, vec![tensor("s", &[], &[f64::NEG_INFINITY])], r#"{"outputs":-Infinity}"#),
        ] {
            assert_eq!(write(form, tensors).as_deref(), Ok(expected));
        }
        let names = Tensor::string_bytes([&b"[a]"[..], b"b\"", b"", b"c"].into_iter());
        let names = |shape: &[i64]| Tensor::new("n", DataType::Bytes, shape.into(), names.clone()).unwrap();
        let columns = write(PredictForm::Columns, vec![names(&[2, 2])]);
        assert_eq!(columns.as_deref(), Ok(r#"{"outputs":[["[a]","b\""],["","c"]]}"#));
        let by_row = write(rows, vec![list(), names(&[2, 2])]);
        let expected = r#"{"predictions":[{"l":5.0,"n":["[a]","b\""]},{"l":6.0,"n":["","c"]}]}"#;
        assert_eq!(by_row.as_deref(), Ok(expected));
        let one = Tensor::new("n", DataType::Bytes, vec![], Tensor::string_bytes([&b"[a]"[..]].into_iter())).unwrap();
        assert_eq!(write(PredictForm::Columns, vec![one]).as_deref(), Ok(r#"{"outputs":"[a]"}"#));
        let error = write(PredictForm::Rows(3), vec![list()]).unwrap_err();
        assert!(error.contains("tensor `l`: has shape [2], not one row for each of the 3"), "{error}");
    }
}
