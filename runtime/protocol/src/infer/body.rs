//! What requests and answers share: a JSON part, and behind it the bytes of binary tensors in the
//! order of the tensors.

use crate::datatype::DataType;
use crate::elements::{self, JsonElements};
use crate::error::ProtocolError;
use crate::limits::TENSORS_MAX;
use crate::parameters::Parameters;
use crate::tensor::{Tensor, element_count};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A body to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// JSON, then the binary tensors.
    pub bytes: Vec<u8>,
    /// Bytes of JSON, for the header [`crate::JSON_LENGTH_HEADER`]; `None` where everything is
    /// JSON.
    pub json_bytes: Option<usize>,
}

/// A tensor as its JSON says it.
#[derive(Deserialize)]
pub(crate) struct RawTensor<'a> {
    name: String,
    datatype: DataType,
    shape: Vec<i64>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// Splits a body into its JSON and its binary part.
pub(crate) fn split(body: &[u8], json_bytes: Option<usize>) -> Result<(&[u8], Binary<'_>), ProtocolError> {
    let json_bytes = json_bytes.unwrap_or(body.len());
    let (json, rest) =
        body.split_at_checked(json_bytes).ok_or(ProtocolError::JsonLength { json_bytes, body_bytes: body.len() })?;
    Ok((json, Binary { rest }))
}

/// Reads the JSON part.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, ProtocolError> {
    serde_json::from_slice(json).map_err(|e| ProtocolError::Json(e.to_string()))
}

pub(crate) fn check_count(what: &'static str, count: usize) -> Result<(), ProtocolError> {
    if count > TENSORS_MAX {
        return Err(ProtocolError::TooMany { what, count, most: TENSORS_MAX });
    }
    Ok(())
}

/// What is left of the binary part.
pub(crate) struct Binary<'a> {
    rest: &'a [u8],
}

impl Binary<'_> {
    /// Completes a tensor, from its JSON data or from the binary part. Also says which it was.
    pub(crate) fn tensor(&mut self, raw: RawTensor<'_>) -> Result<(Tensor, bool), ProtocolError> {
        if raw.parameters.get("shared_memory_region").is_some() {
            return Err(ProtocolError::tensor(
                &raw.name,
                "shared memory is not supported; send the data in the request",
            ));
        }
        let binary_bytes = raw.parameters.unsigned("binary_data_size")?;
        let bytes = match (binary_bytes, raw.data) {
            (Some(_), Some(_)) => {
                return Err(ProtocolError::tensor(
                    &raw.name,
                    "has both data and binary_data_size; one of them is expected",
                ));
            }
            (None, None) => return Err(ProtocolError::tensor(&raw.name, "has neither data nor binary_data_size")),
            (Some(bytes), None) => self.take(&raw.name, bytes)?.to_vec(),
            (None, Some(data)) => {
                elements::decode(&raw.name, raw.datatype, element_count(&raw.name, &raw.shape)?, data)?
            }
        };
        Ok((Tensor::new(raw.name, raw.datatype, raw.shape, bytes)?, binary_bytes.is_some()))
    }

    fn take(&mut self, name: &str, bytes: u64) -> Result<&[u8], ProtocolError> {
        let split = usize::try_from(bytes).ok().and_then(|n| self.rest.split_at_checked(n));
        let (taken, rest) = split.ok_or_else(|| {
            let left = self.rest.len();
            ProtocolError::tensor(name, format!("binary_data_size is {bytes}, {left} bytes are left in the body"))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), ProtocolError> {
        match self.rest.len() {
            0 => Ok(()),
            surplus => Err(ProtocolError::Surplus { surplus }),
        }
    }
}

/// A tensor as JSON says it: with its data, or with the size of its bytes behind the JSON.
#[derive(Serialize)]
pub(crate) struct TensorJson<'a> {
    name: &'a str,
    datatype: DataType,
    shape: &'a [i64],
    #[serde(skip_serializing_if = "Parameters::is_empty")]
    parameters: Parameters,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonElements<'a>>,
}

impl<'a> TensorJson<'a> {
    pub(crate) fn new(tensor: &'a Tensor, binary: bool) -> TensorJson<'a> {
        let mut parameters = Parameters::default();
        if binary {
            parameters.set("binary_data_size", tensor.bytes.len());
        }
        let data = (!binary).then_some(JsonElements { datatype: tensor.datatype, bytes: &tensor.bytes });
        TensorJson { name: &tensor.name, datatype: tensor.datatype, shape: &tensor.shape, parameters, data }
    }
}

/// Puts the bytes of the binary tensors behind the JSON.
pub(crate) fn encode<'a>(json: &impl Serialize, binary: impl Iterator<Item = &'a Tensor> + Clone) -> Encoded {
    // Only maps with other keys than strings cannot be written, and there are none in these types.
    let mut bytes = serde_json::to_vec(json).unwrap_or_default();
    let json_bytes = bytes.len();
    bytes.reserve_exact(binary.clone().map(|t| t.bytes.len()).sum());
    let mut any = false;
    for tensor in binary {
        bytes.extend_from_slice(&tensor.bytes);
        any = true;
    }
    Encoded { bytes, json_bytes: any.then_some(json_bytes) }
}
