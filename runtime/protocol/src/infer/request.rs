//! The inference request, `POST /v2/models/NAME/infer`.

use super::body::{self, Encoded, Input, RawTensor, TensorJson};
use crate::error::ProtocolError;
use crate::json::from_body;
use crate::parameters::Parameters;
use crate::shared::{SharedRange, SharedTensor};
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// An inference request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferRequest {
    /// Echoed in the answer, unless it is empty.
    pub id: String,
    /// `priority`, `timeout`, `deadline_us` and others. Unknown parameters are ignored.
    pub parameters: Parameters,
    /// The inputs whose elements came with the request.
    pub inputs: Vec<Tensor>,
    /// The inputs whose elements are in shared memory.
    pub shared_inputs: Vec<SharedTensor>,
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
    /// Where to write it; `None` to send it in the answer.
    pub shared: Option<SharedRange>,
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
        let mut space = None;
        let raw: RawRequest<'_> = from_body(json, &mut space)?;
        body::check_count("inputs", raw.inputs.len())?;
        body::check_count("outputs", raw.outputs.len())?;
        let (mut inputs, mut shared_inputs) = (Vec::with_capacity(raw.inputs.len()), Vec::new());
        for tensor in raw.inputs {
            match binary.input(tensor)? {
                Input::Sent(tensor) => inputs.push(tensor),
                Input::Shared(tensor) => shared_inputs.push(tensor),
            }
        }
        binary.finish()?;
        let outputs = raw.outputs.into_iter().map(|output| RequestedOutput::new(output.name, &output.parameters));
        let outputs = outputs.collect::<Result<_, _>>()?;
        Ok(InferRequest { id: raw.id, parameters: raw.parameters, inputs, shared_inputs, outputs })
    }

    /// Encodes the request with binary inputs.
    pub fn encode(&self) -> Encoded {
        let json = RequestJson {
            id: &self.id,
            parameters: &self.parameters,
            inputs: self.input_json(true),
            outputs: self.outputs.iter().map(OutputJson::from).collect(),
        };
        body::encode(&json, self.inputs.iter())
    }

    /// Encodes the request as pure JSON.
    pub fn encode_json(&self) -> Encoded {
        let json = RequestJson {
            id: &self.id,
            parameters: &self.parameters,
            inputs: self.input_json(false),
            outputs: self.outputs.iter().map(OutputJson::from).collect(),
        };
        body::encode(&json, std::iter::empty())
    }

    fn input_json(&self, binary: bool) -> Vec<TensorJson<'_>> {
        let sent = self.inputs.iter().map(|tensor| TensorJson::new(tensor, binary));
        let shared = self.shared_inputs.iter();
        let shared = shared.map(|input| TensorJson::shared(&input.name, input.datatype, &input.shape, &input.range));
        sent.chain(shared).collect()
    }
}

impl RequestedOutput {
    /// Reads the parameters of an output: `binary_data`, `classification` and those of shared
    /// memory.
    pub fn new(name: String, parameters: &Parameters) -> Result<RequestedOutput, ProtocolError> {
        let shared = SharedRange::of(&name, parameters)?;
        let classes = parameters.unsigned("classification")?.filter(|count| *count > 0);
        let classes = classes.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        Ok(RequestedOutput { binary: parameters.boolean("binary_data")?, classes, shared, name })
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
        output.shared.iter().for_each(|range| range.describe(&mut parameters));
        OutputJson { name: output.name.clone(), parameters }
    }
}
