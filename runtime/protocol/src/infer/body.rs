//! The common format of requests and answers: a JSON part, followed by the bytes of the binary
//! tensors in order.

use crate::datatype::DataType;
use crate::elements::{self, JsonElements};
use crate::error::ProtocolError;
use crate::limits::TENSORS_MAX;
use crate::parameters::Parameters;
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

/// Decodes the JSON part.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, ProtocolError> {
    serde_json::from_slice(json).map_err(|e| ProtocolError::Json(e.to_string()))
}

pub(crate) fn check_count(what: &'static str, count: usize) -> Result<(), ProtocolError> {
    if count > TENSORS_MAX {
        return Err(ProtocolError::TooMany { what, count, most: TENSORS_MAX });
    }
    Ok(())
}

/// The rest of the binary part.
pub(crate) struct Binary<'a> {
    rest: &'a [u8],
}

impl Binary<'_> {
    /// Completes a tensor from its JSON data or from the binary part. Also returns whether it was
    /// binary.
    pub(crate) fn tensor(&mut self, raw: RawTensor<'_>) -> Result<(Tensor, bool), ProtocolError> {
        Tensor::check_parameters(&raw.name, &raw.parameters)?;
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
