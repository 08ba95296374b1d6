//! The generate extension of Triton: inputs and outputs are fields of JSON objects.
//!
//! A request has no datatypes and no shapes: datatypes are those of the model, and shapes follow
//! from the nesting of arrays, with dimensions of 1 in front if the input has more of them.

use crate::elements::{FirstElement, JsonElements, decode};
use crate::error::ProtocolError;
use crate::infer::{InferRequest, InferResponse};
use crate::json::{from_body, to_vec};
use crate::model::TensorMetadata;
use crate::parameters::Parameters;
use crate::predict::{Fields, shape};
use crate::tensor::{Tensor, check_text, element_count};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Decodes a body for a model with these inputs. Its fields are inputs, `id`, `parameters`, and
/// further parameters.
///
/// # Errors
/// If the body is not a JSON object, names a field twice, has an array or object that is no input,
/// or has arrays whose elements differ in shape.
pub fn decode_generate(body: &[u8], inputs: &[TensorMetadata]) -> Result<InferRequest, ProtocolError> {
    let json = |error: serde_json::Error| ProtocolError::Json(error.to_string());
    let mut space = None;
    let Fields(fields) = from_body(body, &mut space)?;
    let mut request = InferRequest::default();
    for (name, value) in fields {
        if let Some(input) = inputs.iter().find(|input| input.name == name) {
            request.inputs.push(tensor(input, value)?);
        } else if name == "id" {
            request.id = serde_json::from_str(value.get()).map_err(json)?;
        } else if name == "parameters" {
            let given: Parameters = serde_json::from_str(value.get()).map_err(json)?;
            given.iter().for_each(|(name, value)| request.parameters.set(name, value.clone()));
        } else {
            let value: Value = serde_json::from_str(value.get()).map_err(json)?;
            if value.is_array() || value.is_object() || value.is_null() {
                let names: Vec<String> = inputs.iter().map(|input| format!("`{}`", input.name)).collect();
                let reason = format!("the model has no such input; it has {}", names.join(", "));
                return Err(ProtocolError::tensor(&name, reason));
            }
            request.parameters.set(&name, value);
        }
    }
    Ok(request)
}

fn tensor(input: &TensorMetadata, value: &RawValue) -> Result<Tensor, ProtocolError> {
    let given = shape(&input.name, value)?;
    let in_front = vec![1; input.shape.len().saturating_sub(given.len())];
    let shape = [in_front, given].concat();
    let bytes = decode(&input.name, input.datatype, element_count(&input.name, &shape)?, value)?;
    Tensor::new(input.name.clone(), input.datatype, shape, bytes)
}

/// Encodes an answer as JSON: name and version of the model, the id if the request has one, the
/// parameters of the answer, and each output: the value if it has one element, else the list of its
/// elements in row-major order.
///
/// # Errors
/// If an output cannot be written as JSON.
pub fn encode_generated(answer: &InferResponse) -> Result<Vec<u8>, ProtocolError> {
    answer.outputs.iter().map(|output| &output.tensor).try_for_each(check_text)?;
    to_vec(&Generated(answer)).map_err(|error| ProtocolError::Json(error.to_string()))
}

struct Generated<'a>(&'a InferResponse);

impl Serialize for Generated<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let answer = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("model_name", &answer.model_name)?;
        map.serialize_entry("model_version", &answer.model_version)?;
        if !answer.id.is_empty() {
            map.serialize_entry("id", &answer.id)?;
        }
        for (name, value) in answer.parameters.iter() {
            map.serialize_entry(name, value)?;
        }
        for output in &answer.outputs {
            let Tensor { name, datatype, shape, bytes } = &output.tensor;
            let elements = JsonElements { datatype: *datatype, bytes };
            if shape.iter().product::<i64>() == 1 {
                map.serialize_entry(name, &FirstElement(elements))?;
            } else {
                map.serialize_entry(name, &elements)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datatype::DataType;
    use crate::infer::OutputTensor;

    fn inputs() -> Vec<TensorMetadata> {
        let input = |name: &str, datatype, shape: &[i64]| TensorMetadata {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
            symbols: Vec::new(),
        };
        vec![input("x", DataType::Fp32, &[-1, 2]), input("text", DataType::Bytes, &[1])]
    }

    fn decoded(json: &str) -> Result<InferRequest, String> {
        decode_generate(json.as_bytes(), &inputs()).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_are_inputs_with_the_models_types_and_parameters() {
        let request = decoded(
            r#"{"text": "a b", "x": [1, 2], "id": "7", "stream": false, "parameters": {"priority": 1, "seed": 3.5}}"#,
        )
        .unwrap();
        let x = Tensor::from_f64("x", DataType::Fp32, vec![1, 2], &[1.0, 2.0]).unwrap();
        let text = Tensor::new("text", DataType::Bytes, vec![1], b"\x03\0\0\0a b".to_vec()).unwrap();
        assert_eq!(request.inputs, [text, x]);
        assert_eq!(request.id, "7");
        assert_eq!(request.parameters.unsigned("priority"), Ok(Some(1)));
        assert_eq!(request.parameters.boolean("stream"), Ok(Some(false)));
        let shape = |json: &str| decoded(json).unwrap().inputs[0].shape.clone();
        assert_eq!(shape(r#"{"x": 1}"#), [1, 1]);
        assert_eq!(shape(r#"{"x": [NaN, -Infinity]}"#), [1, 2]);
        assert_eq!(shape(r#"{"x": [[1, 2], [3, 4]]}"#), [2, 2]);
        assert_eq!(shape(r#"{"x": [[[1]]]}"#), [1, 1, 1], "the model refuses it");
        assert_eq!(decoded("{}").unwrap(), InferRequest::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (json, expected) in [
            ("[]", "an object"),
            ("{", "EOF"),
            (r#"{"x": 1, "x": 2}"#, "`x` is given twice"),
            (r#"{"y": [1]}"#, "tensor `y`: the model has no such input; it has `x`, `text`"),
            (r#"{"y": null}"#, "no such input"),
            (r#"{"x": [1, [2]]}"#, "element 1 of an array"),
            (r#"{"x": "a"}"#, "not a valid FP32"),
            (r#"{"id": 7}"#, "string"),
            (r#"{"parameters": 7}"#, "map"),
        ] {
            let error = decoded(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn an_output_is_a_value_or_a_list() {
        let output = |tensor| OutputTensor { tensor, binary: true, shared: None };
        let text = Tensor::new("text", DataType::Bytes, vec![1, 1], b"\x03\0\0\0[\"]".to_vec()).unwrap();
        let mut answer = InferResponse {
            model_name: "m".into(),
            model_version: "1".into(),
            outputs: vec![
                output(Tensor::from_f64("y", DataType::Fp32, vec![1, 2, 1], &[1.0, 2.5]).unwrap()),
                output(text),
                output(Tensor::from_f64("none", DataType::Int32, vec![0], &[]).unwrap()),
                output(Tensor::from_f64("nan", DataType::Fp64, vec![1], &[f64::NAN]).unwrap()),
            ],
            ..InferResponse::default()
        };
        let encoded = |answer: &InferResponse| String::from_utf8(encode_generated(answer).unwrap()).unwrap();
        let outputs = r#""y":[1.0,2.5],"text":"[\"]","none":[],"nan":NaN}"#;
        assert_eq!(encoded(&answer), format!(r#"{{"model_name":"m","model_version":"1",{outputs}"#));
        answer.id = "7".into();
        answer.parameters.set("preemptions", 2);
        let expected = format!(r#"{{"model_name":"m","model_version":"1","id":"7","preemptions":2,{outputs}"#);
        assert_eq!(encoded(&answer), expected);
    }
}
