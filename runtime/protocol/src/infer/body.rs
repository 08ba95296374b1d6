//! The common format of requests and answers: a JSON part, followed by the bytes of the binary
//! tensors in order.

use crate::datatype::DataType;
use crate::elements::{self, JsonElements};
use crate::error::ProtocolError;
use crate::limits::TENSORS_MAX;
use crate::parameters::Parameters;
use crate::shared::{SharedRange, SharedTensor};
use crate::tensor::{Tensor, element_count};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// An encoded body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// JSON, followed by the binary tensors.
    pub bytes: Vec<u8>,
    /// Length of the JSON part, for the header [`crate::JSON_LENGTH_HEADER`]; `None` if there is no
    /// binary part.
    pub json_bytes: Option<usize>,
}

/// A tensor in the JSON part.
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

/// Splits a body into its JSON and binary parts.
pub(crate) fn split(body: &[u8], json_bytes: Option<usize>) -> Result<(&[u8], Binary<'_>), ProtocolError> {
    let json_bytes = json_bytes.unwrap_or(body.len());
    let (json, rest) =
        body.split_at_checked(json_bytes).ok_or(ProtocolError::JsonLength { json_bytes, body_bytes: body.len() })?;
    Ok((json, Binary { rest }))
}

pub(crate) fn check_count(what: &'static str, count: usize) -> Result<(), ProtocolError> {
    if count > TENSORS_MAX {
        return Err(ProtocolError::TooMany { what, count, most: TENSORS_MAX });
    }
    Ok(())
}

/// An input of a request.
pub(crate) enum Input {
    /// Its elements came with the request.
    Sent(Tensor),
    /// Its elements are in shared memory.
    Shared(SharedTensor),
}

/// The rest of the binary part.
pub(crate) struct Binary<'a> {
    rest: &'a [u8],
}

impl Binary<'_> {
    /// Completes an input from its JSON data, from the binary part, or with its place in shared
    /// memory.
    pub(crate) fn input(&mut self, raw: RawTensor<'_>) -> Result<Input, ProtocolError> {
        let Some(range) = SharedRange::of(&raw.name, &raw.parameters)? else {
            return Ok(Input::Sent(self.tensor(raw)?.0));
        };
        if raw.data.is_some() || raw.parameters.get("binary_data_size").is_some() {
            let reason = "is in shared memory and has data in the request; send one of them";
            return Err(ProtocolError::tensor(&raw.name, reason));
        }
        let RawTensor { name, datatype, shape, .. } = raw;
        Ok(Input::Shared(SharedTensor { name, datatype, shape, range }))
    }

    /// Completes a tensor from its JSON data or from the binary part. Also returns whether it was
    /// binary.
    pub(crate) fn tensor(&mut self, raw: RawTensor<'_>) -> Result<(Tensor, bool), ProtocolError> {
        let binary_bytes = raw.parameters.unsigned("binary_data_size")?;
        let bytes = match (binary_bytes, raw.data) {
            (Some(_), Some(_)) => {
                return Err(ProtocolError::tensor(&raw.name, "has both data and binary_data_size; send one of them"));
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
            ProtocolError::tensor(name, format!("binary_data_size is {bytes}, but {left} bytes are left in the body"))
        })?;
        self.rest = rest;
        Ok(taken)
    }

    /// Checks that no bytes are left.
    pub(crate) fn finish(self) -> Result<(), ProtocolError> {
        match self.rest.len() {
            0 => Ok(()),
            surplus => Err(ProtocolError::Surplus { surplus }),
        }
    }
}

/// A tensor in the JSON part: with its data, or with the size of its bytes in the binary part.
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
    /// A tensor without elements, which are in shared memory.
    pub(crate) fn shared(name: &'a str, datatype: DataType, shape: &'a [i64], range: &SharedRange) -> TensorJson<'a> {
        let mut parameters = Parameters::default();
        range.describe(&mut parameters);
        TensorJson { name, datatype, shape, parameters, data: None }
    }

    pub(crate) fn new(tensor: &'a Tensor, binary: bool) -> TensorJson<'a> {
        let mut parameters = Parameters::default();
        if binary {
            parameters.set("binary_data_size", tensor.bytes.len());
        }
        let data = (!binary).then_some(JsonElements { datatype: tensor.datatype, bytes: &tensor.bytes });
        TensorJson { name: &tensor.name, datatype: tensor.datatype, shape: &tensor.shape, parameters, data }
    }
}

/// Appends the bytes of the binary tensors to the JSON.
pub(crate) fn encode<'a>(json: &impl Serialize, binary: impl Iterator<Item = &'a Tensor> + Clone) -> Encoded {
    // Serialization only fails for maps with non-string keys, which these types do not contain.
    let mut bytes = crate::json::to_vec(json).unwrap_or_default();
    let json_bytes = bytes.len();
    bytes.reserve_exact(binary.clone().map(|t| t.bytes.len()).sum());
    let mut any = false;
    for tensor in binary {
        bytes.extend_from_slice(&tensor.bytes);
        any = true;
    }
    Encoded { bytes, json_bytes: any.then_some(json_bytes) }
}
