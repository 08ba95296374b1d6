//! The inference request, `POST /v2/models/NAME/infer`.

use super::body::{self, Encoded, RawTensor, TensorJson};
use crate::error::ProtocolError;
use crate::parameters::Parameters;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// An inference request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// Echoed in the answer, unless it is empty.
    pub id: String,
    /// `priority`, `timeout`, `deadline_us` and others. Unknown parameters are ignored.
    pub parameters: Parameters,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The requested outputs; empty for all.
    pub outputs: Vec<RequestedOutput>,
}

/// A requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedOutput {
    /// Its name in the model.
    pub name: String,
    /// Whether to send it in the binary part; `None` for the request's default.
    pub binary: Option<bool>,
    /// Send only this many best classes instead of the scores.
    pub classes: Option<usize>,
}

#[derive(Deserialize)]
struct RawRequest<'a> {
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Vec<RawTensor<'a>>,
    #[serde(default)]
    outputs: Vec<OutputJson>,
}

#[derive(Serialize, Deserialize)]
struct OutputJson {
    name: String,
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    parameters: Parameters,
}

#[derive(Serialize)]
struct RequestJson<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "Parameters::is_empty")]
    parameters: &'a Parameters,
    inputs: Vec<TensorJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<OutputJson>,
}

impl InferRequest {
    /// Decodes a body. `json_bytes` is the value of [`crate::JSON_LENGTH_HEADER`], if present.
    pub fn decode(body: &[u8], json_bytes: Option<usize>) -> Result<InferRequest, ProtocolError> {
        let (json, mut binary) = body::split(body, json_bytes)?;
        let raw: RawRequest<'_> = body::from_json(json)?;
        body::check_count("inputs", raw.inputs.len())?;
        body::check_count("outputs", raw.outputs.len())?;
        let inputs = raw.inputs.into_iter().map(|tensor| Ok(binary.tensor(tensor)?.0)).collect::<Result<_, _>>()?;
        binary.finish()?;
        let outputs = raw.outputs.into_iter().map(|output| RequestedOutput::new(output.name, &output.parameters));
        let outputs = outputs.collect::<Result<_, _>>()?;
        Ok(InferRequest { id: raw.id, parameters: raw.parameters, inputs, outputs })
    }

    /// Encodes the request with binary inputs.
    pub fn encode(&self) -> Encoded {
        let json = RequestJson {
            id: &self.id,
            parameters: &self.parameters,
            inputs: self.inputs.iter().map(|tensor| TensorJson::new(tensor, true)).collect(),
            outputs: self.outputs.iter().map(OutputJson::from).collect(),
        };
        body::encode(&json, self.inputs.iter())
    }

    /// Encodes the request as pure JSON.
    pub fn encode_json(&self) -> Encoded {
        let json = RequestJson {
            id: &self.id,
            parameters: &self.parameters,
            inputs: self.inputs.iter().map(|tensor| TensorJson::new(tensor, false)).collect(),
            outputs: self.outputs.iter().map(OutputJson::from).collect(),
        };
        body::encode(&json, std::iter::empty())
    }
}

impl RequestedOutput {
    /// Reads the parameters of an output: `binary_data` and `classification`.
    pub fn new(name: String, parameters: &Parameters) -> Result<RequestedOutput, ProtocolError> {
        if parameters.get("shared_memory_region").is_some() {
            let reason = "shared memory is not supported; read the output from the answer";
            return Err(ProtocolError::tensor(&name, reason));
        }
        let classes = parameters.unsigned("classification")?.filter(|count| *count > 0);
        let classes = classes.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        Ok(RequestedOutput { binary: parameters.boolean("binary_data")?, classes, name })
    }
}

impl From<&RequestedOutput> for OutputJson {
    fn from(output: &RequestedOutput) -> OutputJson {
        let mut parameters = Parameters::default();
        if let Some(binary) = output.binary {
            parameters.set("binary_data", binary);
        }
        if let Some(classes) = output.classes {
            parameters.set("classification", classes);
        }
        OutputJson { name: output.name.clone(), parameters }
    }
}
