//! The memory that a message of an inference request takes once it is decoded.
//!
//! A small message may decode to many times its size: an empty input takes two bytes on the wire
//! and a few hundred in memory. So a message is scanned before it is decoded. The scan limits the
//! number of tensors and parameters, and computes how much memory to reserve for the decoded
//! message.

use crate::limits::PARAMETERS_MAX;
use crate::requests::error::RequestError;
use atoll_protocol::ProtocolError;
use atoll_protocol::limits::TENSORS_MAX;
use prost::encoding::{WireType, decode_key, decode_varint};

/// Memory of a decoded field besides its bytes: a string or vector with its allocation.
const FIELD_BYTES: usize = 64;

/// Memory of a number that was decoded from a packed list.
const NUMBER_BYTES: usize = 8;

/// The messages that are scanned. The numbers of their fields are those in `proto/inference.proto`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Request,
    Input,
    Output,
    Contents,
}

/// The bytes that a `ModelInferRequest` takes when it is decoded, besides those of the message
/// itself. Returns an error if it has too many tensors or parameters, or is not valid protobuf.
pub(super) fn decoded_bytes(message: &[u8]) -> Result<usize, RequestError> {
    walk(Message::Request, message)
}

fn walk(kind: Message, mut rest: &[u8]) -> Result<usize, RequestError> {
    let (mut bytes, mut inputs, mut outputs, mut raw, mut parameters) = (0, 0, 0, 0, 0);
    while !rest.is_empty() {
        let (field, payload) = next(&mut rest)?;
        bytes += FIELD_BYTES;
        match (kind, field) {
            (Message::Request, 5) => {
                count("inputs", &mut inputs, TENSORS_MAX)?;
                bytes += walk(Message::Input, payload)?;
            }
            (Message::Request, 6) => {
                count("outputs", &mut outputs, TENSORS_MAX)?;
                bytes += walk(Message::Output, payload)?;
            }
            (Message::Request, 7) => count("raw contents", &mut raw, TENSORS_MAX)?,
            (Message::Request | Message::Input, 4) | (Message::Output, 2) => {
                count("parameters", &mut parameters, PARAMETERS_MAX)?;
            }
            (Message::Input, 5) => bytes += walk(Message::Contents, payload)?,
            // The highest bit of a varint's last byte is clear, so this counts numbers.
            (Message::Input, 3) | (Message::Contents, 1..=5) => {
                bytes += NUMBER_BYTES * payload.iter().filter(|byte| **byte < 0x80).count();
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Takes the next field: its number and its payload, which is empty for numbers.
fn next<'a>(rest: &mut &'a [u8]) -> Result<(u32, &'a [u8]), RequestError> {
    let broken = || RequestError::bad_request("the message is not valid: it is not in the form of protobuf");
    let (field, form) = decode_key(rest).map_err(|_| broken())?;
    let length = match form {
        WireType::Varint => {
            decode_varint(rest).map_err(|_| broken())?;
            return Ok((field, &[]));
        }
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => decode_varint(rest).map_err(|_| broken())?,
        WireType::StartGroup | WireType::EndGroup => return Err(broken()),
    };
    let split = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
    let (payload, after) = split.ok_or_else(broken)?;
    *rest = after;
    Ok((field, if form == WireType::LengthDelimited { payload } else { &[] }))
}

fn count(what: &'static str, count: &mut usize, most: usize) -> Result<(), RequestError> {
    *count += 1;
    if *count > most { Err(ProtocolError::TooMany { what, count: *count, most }.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use crate::grpc::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
    use prost::Message as _;

    fn refused(request: &ModelInferRequest) -> String {
        decoded_bytes(&request.encode_to_vec()).unwrap_err().message
    }

    #[test]
    fn small_fields_count_with_the_memory_that_they_take() {
        let contents = InferTensorContents { int64_contents: vec![1; 1000], ..InferTensorContents::default() };
        let strings = InferTensorContents { bytes_contents: vec![vec![]; 500], ..InferTensorContents::default() };
        let input = |contents| InferInputTensor { contents: Some(contents), ..InferInputTensor::default() };
        let request = ModelInferRequest { inputs: vec![input(contents), input(strings)], ..Default::default() };
        let bytes = decoded_bytes(&request.encode_to_vec()).unwrap();
        assert!((8 * 1000 + 64 * 500..60_000).contains(&bytes), "{bytes}");
        let raw = ModelInferRequest { raw_input_contents: vec![vec![0; 1 << 20]], ..Default::default() };
        assert_eq!(decoded_bytes(&raw.encode_to_vec()).unwrap(), FIELD_BYTES);
    }

    #[test]
    fn the_number_of_tensors_and_parameters_is_limited() {
        let parameters = |count: usize| (0..count).map(|at| (at.to_string(), InferParameter::default())).collect();
        let inputs = ModelInferRequest { inputs: vec![InferInputTensor::default(); 1025], ..Default::default() };
        assert!(refused(&inputs).contains("1025 inputs; the limit is 1024"));
        let outputs =
            ModelInferRequest { outputs: vec![InferRequestedOutputTensor::default(); 1025], ..Default::default() };
        assert!(refused(&outputs).contains("outputs"));
        let raw = ModelInferRequest { raw_input_contents: vec![vec![]; 1025], ..Default::default() };
        assert!(refused(&raw).contains("raw contents"));
        let many = ModelInferRequest { parameters: parameters(257), ..Default::default() };
        assert!(refused(&many).contains("257 parameters"));
        let input = InferInputTensor { parameters: parameters(257), ..Default::default() };
        assert!(refused(&ModelInferRequest { inputs: vec![input], ..Default::default() }).contains("parameters"));
        let full = ModelInferRequest {
            inputs: vec![InferInputTensor::default(); 1024],
            parameters: parameters(256),
            ..Default::default()
        };
        assert!(decoded_bytes(&full.encode_to_vec()).is_ok());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for broken in [&[0xff][..], &[0x2a, 0x05, 0x00], &[0x0b], &[0x2d, 0, 0], &[0x2a, 0xff, 0xff, 0xff, 0xff, 0x0f]]
        {
            assert!(decoded_bytes(broken).is_err(), "{broken:?}");
        }
    }
}
