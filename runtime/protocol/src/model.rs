//! Bodies about the server and its models: health, metadata, configuration, statistics.

use crate::datatype::DataType;
use serde::{Deserialize, Serialize};

/// `GET /v2/health/live`. KServe's client reads the body, Triton's the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Whether the server is alive.
    pub live: bool,
}

/// `GET /v2/health/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Whether the server takes inference requests.
    pub ready: bool,
}

/// `GET /v2/models/NAME/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReady {
    /// The model.
    pub name: String,
    /// Whether it takes requests.
    pub ready: bool,
}

/// `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMetadata {
    /// Name of the server.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Extensions of the protocol it has.
    pub extensions: Vec<String>,
}

/// `GET /v2/models/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMetadata {
    /// The model.
    pub name: String,
    /// Its versions.
    pub versions: Vec<String>,
    /// What executes it.
    pub platform: String,
    /// Its inputs.
    pub inputs: Vec<TensorMetadata>,
    /// Its outputs.
    pub outputs: Vec<TensorMetadata>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions; -1 where it varies.
    pub shape: Vec<i64>,
    /// An extension of ours: by dimension the name of the size that varies, empty where there is
    /// none. Dimensions of one name have one size. Empty where no dimension has a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<String>,
}

/// `GET /v2/models/NAME/config`: the part of Triton's configuration that clients read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The model.
    pub name: String,
    /// What executes it.
    pub platform: String,
    /// The same in newer words.
    pub backend: String,
    /// Always 0: shapes are whole, the batch dimension included.
    pub max_batch_size: u32,
    /// Its inputs.
    pub input: Vec<ConfigTensor>,
    /// Its outputs.
    pub output: Vec<ConfigTensor>,
    /// What it keeps for a sequence of requests; nothing for a model without state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_batching: Option<SequenceBatching>,
}

/// How a model serves sequences of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceBatching {
    /// How long a sequence is kept without a request.
    pub max_sequence_idle_microseconds: u64,
    /// What is kept.
    pub state: Vec<ConfigState>,
}

/// An input and an output that are one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    /// The input.
    pub input_name: String,
    /// The output.
    pub output_name: String,
    /// `TYPE_` and the type's name.
    pub data_type: String,
    /// Dimensions of the input; -1 where it varies.
    pub dims: Vec<i64>,
}

/// An input or output in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTensor {
    /// Its name.
    pub name: String,
    /// `TYPE_` and the type's name.
    pub data_type: String,
    /// Dimensions; -1 where it varies.
    pub dims: Vec<i64>,
}

impl From<&TensorMetadata> for ConfigTensor {
    fn from(tensor: &TensorMetadata) -> ConfigTensor {
        ConfigTensor { name: tensor.name.clone(), data_type: tensor.datatype.config_name(), dims: tensor.shape.clone() }
    }
}

/// `GET /v2/models/stats` and `GET /v2/models/NAME/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatisticsList {
    /// One entry per model.
    pub model_stats: Vec<ModelStatistics>,
}

/// One model since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// The model.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When the last request came, in milliseconds since 1970; 0 before the first.
    pub last_inference: u64,
    /// Requests that were answered with a result.
    pub inference_count: u64,
    /// The same: requests are not batched.
    pub execution_count: u64,
    /// Where the time went.
    pub inference_stats: InferenceStatistics,
    /// Always empty: requests are not batched.
    pub batch_stats: Vec<()>,
}

/// Counts and sums of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InferenceStatistics {
    /// Requests with a result, from submission to answer.
    pub success: DurationStatistics,
    /// Requests without one.
    pub fail: DurationStatistics,
    /// Waiting.
    pub queue: DurationStatistics,
    /// Writing inputs.
    pub compute_input: DurationStatistics,
    /// Computing.
    pub compute_infer: DurationStatistics,
    /// Reading outputs.
    pub compute_output: DurationStatistics,
    /// Always zero: answers are not cached.
    pub cache_hit: DurationStatistics,
    /// Always zero: answers are not cached.
    pub cache_miss: DurationStatistics,
}

/// How often, and how long in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationStatistics {
    /// How often.
    pub count: u64,
    /// Sum in nanoseconds.
    pub ns: u64,
}
