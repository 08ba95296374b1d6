//! The answer to an inference request.

use super::body::{self, Encoded, RawTensor, TensorJson};
use crate::error::ProtocolError;
use crate::json::from_body;
use crate::parameters::Parameters;
use crate::shared::SharedRange;
use crate::tensor::{Tensor, check_text};
use serde::{Deserialize, Serialize};

/// An inference answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferResponse {
    /// The model.
    pub model_name: String,
    /// Its version.
    pub model_version: String,
    /// The id of the request; empty if it had none.
    pub id: String,
    /// Further properties of the answer.
    pub parameters: Parameters,
    /// The outputs.
    pub outputs: Vec<OutputTensor>,
}

/// An output and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTensor {
    /// The tensor.
    pub tensor: Tensor,
    /// Whether its bytes are in the binary part.
    pub binary: bool,
    /// Where in shared memory its bytes were written; they are then not encoded.
    pub shared: Option<SharedRange>,
}

impl OutputTensor {
    fn json(&self) -> TensorJson<'_> {
        let OutputTensor { tensor, binary, shared } = self;
        match shared {
            Some(range) => TensorJson::shared(&tensor.name, tensor.datatype, &tensor.shape, range),
            None => TensorJson::new(tensor, *binary),
        }
    }
}

#[derive(Deserialize)]
struct RawResponse<'a> {
    model_name: String,
    #[serde(default)]
    model_version: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    outputs: Vec<RawTensor<'a>>,
}

#[derive(Serialize)]
struct ResponseJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Parameters::is_empty")]
    parameters: &'a Parameters,
    outputs: Vec<TensorJson<'a>>,
}

impl InferResponse {
    /// Decodes a body. `json_bytes` is the value of [`crate::JSON_LENGTH_HEADER`], if present.
    pub fn decode(body: &[u8], json_bytes: Option<usize>) -> Result<InferResponse, ProtocolError> {
        let (json, mut binary) = body::split(body, json_bytes)?;
        let mut space = None;
        let raw: RawResponse<'_> = from_body(json, &mut space)?;
        body::check_count("outputs", raw.outputs.len())?;
        let output = |raw| binary.tensor(raw).map(|(tensor, binary)| OutputTensor { tensor, binary, shared: None });
        let outputs = raw.outputs.into_iter().map(output).collect::<Result<_, _>>()?;
        binary.finish()?;
        Ok(InferResponse {
            model_name: raw.model_name,
            model_version: raw.model_version,
            id: raw.id,
            parameters: raw.parameters,
            outputs,
        })
    }

    /// Encodes the answer.
    ///
    /// # Errors
    /// If an output that is not binary has a string that is not UTF-8.
    pub fn encode(&self) -> Result<Encoded, ProtocolError> {
        let as_json = self.outputs.iter().filter(|output| !output.binary && output.shared.is_none());
        as_json.map(|output| &output.tensor).try_for_each(check_text)?;
        let json = ResponseJson {
            id: &self.id,
            model_name: &self.model_name,
            model_version: &self.model_version,
            parameters: &self.parameters,
            outputs: self.outputs.iter().map(OutputTensor::json).collect(),
        };
        let binary = self.outputs.iter().filter(|output| output.binary && output.shared.is_none());
        Ok(body::encode(&json, binary.map(|output| &output.tensor)))
    }
}
