//! Converts inference requests and answers between gRPC messages and the types of the protocol.

use super::proto::inference::infer_parameter::ParameterChoice;
use super::proto::inference::model_infer_request::InferInputTensor;
use super::proto::inference::model_infer_response::InferOutputTensor;
use super::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use atoll_protocol::{
    DataType, InferRequest, InferResponse, Parameters, ProtocolError, RequestedOutput, SharedRange, SharedTensor,
    Tensor,
};
use serde_json::Value;
use std::collections::HashMap;

/// Decodes a request.
pub(super) fn request(message: ModelInferRequest) -> Result<InferRequest, ProtocolError> {
    let ModelInferRequest { id, parameters: given, inputs, outputs, raw_input_contents: raw, .. } = message;
    let (mut sent, mut shared_inputs) = (Vec::with_capacity(inputs.len()), Vec::new());
    for mut input in inputs {
        match SharedRange::of(&input.name, &parameters(std::mem::take(&mut input.parameters))?)? {
            None => sent.push(input),
            Some(range) => shared_inputs.push(shared(input, range)?),
        }
    }
    // Inputs in shared memory have no raw contents.
    if !raw.is_empty() && raw.len() != sent.len() {
        let reason = format!("the request has {} for {} inputs that are not in shared memory", raw.len(), sent.len());
        return Err(ProtocolError::Parameter { name: "raw_input_contents".into(), reason });
    }
    let mut raw = raw.into_iter();
    let inputs = sent.into_iter().map(|input| tensor(input, raw.next())).collect::<Result<_, _>>()?;
    let outputs = outputs.into_iter().map(|output| RequestedOutput::new(output.name, &parameters(output.parameters)?));
    let outputs = outputs.collect::<Result<_, _>>()?;
    Ok(InferRequest { id, parameters: parameters(given)?, inputs, shared_inputs, outputs })
}

fn parameters(given: HashMap<String, InferParameter>) -> Result<Parameters, ProtocolError> {
    let mut parameters = Parameters::default();
    for (name, parameter) in given {
        let value: Value = match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => value.into(),
            Some(ParameterChoice::Int64Param(value)) => value.into(),
            Some(ParameterChoice::Uint64Param(value)) => value.into(),
            Some(ParameterChoice::DoubleParam(value)) => value.into(),
            Some(ParameterChoice::StringParam(value)) => value.into(),
            None => return Err(ProtocolError::Parameter { name, reason: "it has no value of a known type".into() }),
        };
        parameters.set(&name, value);
    }
    Ok(parameters)
}

fn refused(name: &str, reason: impl Into<String>) -> ProtocolError {
    ProtocolError::Tensor { name: name.into(), reason: reason.into() }
}

fn datatype(name: &str, text: &str) -> Result<DataType, ProtocolError> {
    text.parse().map_err(|unknown| refused(name, format!("{unknown}")))
}

fn shared(input: InferInputTensor, range: SharedRange) -> Result<SharedTensor, ProtocolError> {
    let InferInputTensor { name, datatype: of, shape, contents, .. } = input;
    if contents.is_some() {
        return Err(refused(&name, "is in shared memory and has contents; send one of them"));
    }
    Ok(SharedTensor { datatype: datatype(&name, &of)?, name, shape, range })
}

fn tensor(input: InferInputTensor, raw: Option<Vec<u8>>) -> Result<Tensor, ProtocolError> {
    let InferInputTensor { name, datatype: of, shape, contents, .. } = input;
    let datatype = datatype(&name, &of)?;
    let bytes = match (raw, contents) {
        (Some(bytes), None) => bytes,
        (Some(_), Some(_)) => {
            return Err(refused(&name, "has both contents and raw_input_contents; send one of them"));
        }
        (None, None) => return Err(refused(&name, "has neither contents nor raw_input_contents")),
        (None, Some(contents)) => elements(&name, datatype, &contents)?,
    };
    Tensor::new(name, datatype, shape, bytes)
}

/// The bytes of a tensor whose elements are typed values in the message.
fn elements(name: &str, datatype: DataType, contents: &InferTensorContents) -> Result<Vec<u8>, ProtocolError> {
    let refused = |reason: String| refused(name, reason);
    /// The bytes of numbers that the message has in a wider type than the tensor's.
    macro_rules! narrow {
        ($values:expr, $type:ty) => {{
            let mut bytes = Vec::with_capacity($values.len() * size_of::<$type>());
            for value in &$values {
                let value =
                    <$type>::try_from(*value).map_err(|_| refused(format!("{value} is not a valid {datatype}")))?;
                bytes.extend_from_slice(&value.to_le_bytes());
            }
            Ok(bytes)
        }};
    }
    macro_rules! bytes_of {
        ($values:expr) => {
            Ok($values.iter().flat_map(|value| value.to_le_bytes()).collect())
        };
    }
    match datatype {
        DataType::Bool => Ok(contents.bool_contents.iter().map(|value| u8::from(*value)).collect()),
        DataType::Uint8 => narrow!(contents.uint_contents, u8),
        DataType::Uint16 => narrow!(contents.uint_contents, u16),
        DataType::Uint32 => bytes_of!(contents.uint_contents),
        DataType::Uint64 => bytes_of!(contents.uint64_contents),
        DataType::Int8 => narrow!(contents.int_contents, i8),
        DataType::Int16 => narrow!(contents.int_contents, i16),
        DataType::Int32 => bytes_of!(contents.int_contents),
        DataType::Int64 => bytes_of!(contents.int64_contents),
        DataType::Fp32 => bytes_of!(contents.fp32_contents),
        DataType::Fp64 => bytes_of!(contents.fp64_contents),
        DataType::Bytes => Ok(Tensor::string_bytes(contents.bytes_contents.iter().map(Vec::as_slice))),
        DataType::Fp16 | DataType::Bf16 => {
            Err(refused(format!("{datatype} has no field in contents; send it in raw_input_contents")))
        }
    }
}

/// Encodes an answer, with the elements in raw form.
pub(super) fn response(answer: InferResponse) -> ModelInferResponse {
    let InferResponse { model_name, model_version, id, parameters, outputs } = answer;
    let mut message = ModelInferResponse {
        model_name,
        model_version,
        id,
        parameters: messages(&parameters),
        outputs: Vec::with_capacity(outputs.len()),
        raw_output_contents: Vec::with_capacity(outputs.len()),
    };
    for output in outputs {
        let Tensor { name, datatype, shape, bytes } = output.tensor;
        let datatype = datatype.name().to_owned();
        let mut given = Parameters::default();
        output.shared.iter().for_each(|range| range.describe(&mut given));
        let parameters = messages(&given);
        message.outputs.push(InferOutputTensor { name, datatype, shape, parameters, ..InferOutputTensor::default() });
        // Clients expect one entry of raw contents for each output, so an output in shared memory
        // has an empty one.
        message.raw_output_contents.push(if output.shared.is_some() { Default::default() } else { bytes.into() });
    }
    message
}

fn messages(parameters: &Parameters) -> HashMap<String, InferParameter> {
    parameters.iter().filter_map(|(name, value)| Some((name.clone(), parameter(value)?))).collect()
}

/// A parameter of an answer. gRPC has no form for lists and objects, and no answer contains any.
fn parameter(value: &Value) -> Option<InferParameter> {
    let choice = match value {
        Value::Bool(value) => ParameterChoice::BoolParam(*value),
        Value::String(value) => ParameterChoice::StringParam(value.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => ParameterChoice::Int64Param(value),
            (None, Some(value)) => ParameterChoice::Uint64Param(value),
            (None, None) => ParameterChoice::DoubleParam(number.as_f64()?),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(InferParameter { parameter_choice: Some(choice) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::inference::model_infer_request::InferRequestedOutputTensor;

    fn input(datatype: &str, shape: &[i64], contents: InferTensorContents) -> InferInputTensor {
        let (name, datatype) = ("x".into(), datatype.into());
        InferInputTensor { name, datatype, shape: shape.to_vec(), contents: Some(contents), ..Default::default() }
    }

    fn one(input: InferInputTensor) -> Result<Tensor, String> {
        let read = request(ModelInferRequest { inputs: vec![input], ..Default::default() });
        read.map(|mut request| request.inputs.remove(0)).map_err(|error| error.to_string())
    }

    fn contents(change: impl FnOnce(&mut InferTensorContents)) -> InferTensorContents {
        let mut contents = InferTensorContents::default();
        change(&mut contents);
        contents
    }

    #[test]
    fn typed_contents_are_the_bytes_of_their_type() {
        let cases: [(&str, InferTensorContents, &[u8]); 12] = [
            ("BOOL", contents(|c| c.bool_contents = vec![true, false]), &[1, 0]),
            ("UINT8", contents(|c| c.uint_contents = vec![7, 255]), &[7, 255]),
            ("UINT16", contents(|c| c.uint_contents = vec![7, 0xabcd]), &[7, 0, 0xcd, 0xab]),
            ("UINT32", contents(|c| c.uint_contents = vec![7, 1]), &[7, 0, 0, 0, 1, 0, 0, 0]),
            ("UINT64", contents(|c| c.uint64_contents = vec![u64::MAX, 0]), &[&[255; 8][..], &[0; 8]].concat()),
            ("INT8", contents(|c| c.int_contents = vec![-1, 127]), &[255, 127]),
            ("INT16", contents(|c| c.int_contents = vec![-2, 1]), &[254, 255, 1, 0]),
            ("INT32", contents(|c| c.int_contents = vec![-1, 2]), &[255, 255, 255, 255, 2, 0, 0, 0]),
            ("INT64", contents(|c| c.int64_contents = vec![-1, 0]), &[&[255; 8][..], &[0; 8]].concat()),
            ("FP32", contents(|c| c.fp32_contents = vec![1.0, -0.0]), &[0, 0, 128, 63, 0, 0, 0, 128]),
            (
                "FP64",
                contents(|c| c.fp64_contents = vec![0.0, f64::NAN]),
                &[&[0; 8][..], &f64::NAN.to_le_bytes()].concat(),
            ),
            (
                "BYTES",
                contents(|c| c.bytes_contents = vec![b"ab".to_vec(), vec![]]),
                &[2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0],
            ),
        ];
        for (datatype, contents, expected) in cases {
            assert_eq!(one(input(datatype, &[2], contents)).unwrap().bytes, expected, "{datatype}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let none = InferTensorContents::default;
        for (input, says) in [
            (input("UINT8", &[1], contents(|c| c.uint_contents = vec![256])), "256 is not a valid UINT8"),
            (input("INT8", &[1], contents(|c| c.int_contents = vec![-129])), "-129 is not a valid INT8"),
            (input("FP16", &[1], none()), "FP16 has no field in contents"),
            (input("FLOAT", &[1], none()), "unknown datatype FLOAT"),
            (
                input("FP32", &[2], contents(|c| c.fp32_contents = vec![1.0])),
                "has 4 bytes, but shape [2] of FP32 needs 8",
            ),
            (input("FP32", &[-1], none()), "a negative dimension -1"),
            (InferInputTensor { contents: None, ..input("FP32", &[1], none()) }, "neither contents nor"),
        ] {
            let error = one(input).unwrap_err();
            assert!(error.contains(says) && error.contains("`x`"), "{error}");
        }
    }

    #[test]
    fn raw_contents_belong_to_all_inputs() {
        let raw = |count| ModelInferRequest {
            inputs: vec![InferInputTensor { contents: None, ..input("FP32", &[1], InferTensorContents::default()) }],
            raw_input_contents: vec![vec![0; 4]; count],
            ..Default::default()
        };
        assert_eq!(request(raw(1)).unwrap().inputs[0].bytes, [0; 4]);
        assert!(request(raw(2)).unwrap_err().to_string().contains("has 2 for 1 inputs that"));
        let mut both = raw(1);
        both.inputs[0].contents = Some(InferTensorContents::default());
        assert!(request(both).unwrap_err().to_string().contains("both contents and raw_input_contents"));
    }

    #[test]
    fn parameters_keep_their_types() {
        let of = |choice| InferParameter { parameter_choice: Some(choice) };
        let given = [
            ("priority", of(ParameterChoice::Uint64Param(u64::MAX))),
            ("timeout", of(ParameterChoice::Int64Param(7))),
            ("sequence_id", of(ParameterChoice::StringParam("a".into()))),
            ("sequence_start", of(ParameterChoice::BoolParam(true))),
            ("temperature", of(ParameterChoice::DoubleParam(0.5))),
        ];
        let message = ModelInferRequest {
            parameters: given.map(|(name, value)| (name.into(), value)).into(),
            outputs: vec![InferRequestedOutputTensor {
                name: "y".into(),
                parameters: [("classification".into(), of(ParameterChoice::Int64Param(3)))].into(),
            }],
            ..Default::default()
        };
        let read = request(message.clone()).unwrap();
        assert_eq!(read.parameters.unsigned("priority"), Ok(Some(u64::MAX)));
        assert_eq!(read.parameters.unsigned("timeout"), Ok(Some(7)));
        assert_eq!(read.parameters.get("sequence_id"), Some(&"a".into()));
        assert_eq!(read.outputs[0].classes, Some(3));
        let answer = response(InferResponse { parameters: read.parameters, ..InferResponse::default() });
        assert_eq!(answer.parameters, message.parameters);
        let mut shared = message.clone();
        shared.outputs[0]
            .parameters
            .insert("shared_memory_region".into(), of(ParameterChoice::StringParam("r".into())));
        assert!(request(shared).unwrap_err().to_string().contains("no shared_memory_byte_size"));
        let mut nothing = message;
        nothing.parameters.insert("z".into(), InferParameter::default());
        assert!(request(nothing).unwrap_err().to_string().contains("`z`: it has no value"));
    }
}
