//! Messages about the server and its models: health, metadata, configuration, statistics.

use crate::datatype::DataType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /v2/health/live`. KServe's client reads the body, Triton's the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Whether the server is alive.
    pub live: bool,
}

/// `GET /v2/health/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Whether the server accepts inference requests.
    pub ready: bool,
}

/// `GET /v2/models/NAME/ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReady {
    /// The model.
    pub name: String,
    /// Whether the model accepts requests.
    pub ready: bool,
}

/// `GET /v2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerMetadata {
    /// Name of the server.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Supported extensions of the protocol.
    pub extensions: Vec<String>,
}

/// `GET /v2/models/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMetadata {
    /// The model.
    pub name: String,
    /// Its versions.
    pub versions: Vec<String>,
    /// The runtime that executes it.
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
    /// Dimensions; -1 for a variable one.
    pub shape: Vec<i64>,
    /// An extension of Atoll: the name of the symbol in each dimension, empty for a constant.
    /// Dimensions with the same name have the same size. The list is empty if no dimension is a
    /// symbol.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<String>,
}

/// `GET /v2/models/NAME/config`: the part of Triton's configuration that clients read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The model.
    pub name: String,
    /// The runtime that executes it.
    pub platform: String,
    /// The name of the server's backend, `atoll`. Newer clients read it instead of `platform`.
    pub backend: String,
    /// Which of the versions in the model's folder are served.
    pub version_policy: ConfigVersionPolicy,
    /// Most rows of a batch. If it is not 0, the dimensions of tensors here are without the batch
    /// dimension. 0 for a model without batching, whose dimensions are complete.
    pub max_batch_size: u32,
    /// How requests are gathered into batches; `None` if each runs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<DynamicBatching>,
    /// Its inputs.
    pub input: Vec<ConfigTensor>,
    /// Its outputs.
    pub output: Vec<ConfigTensor>,
    /// The state of a sequence; `None` for a model without state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_batching: Option<SequenceBatching>,
    /// The steps of an ensemble; `None` for other models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble_scheduling: Option<EnsembleScheduling>,
    /// Whether responses are kept and sent again; `None` if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_cache: Option<ConfigResponseCache>,
    /// Whether requests may have any number of answers; `None` if each has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_transaction_policy: Option<ConfigTransactionPolicy>,
    /// The parameters of its configuration, as they are written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, ConfigParameter>,
}

/// The steps of an ensemble.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsembleScheduling {
    /// The steps, in the order of the configuration.
    pub step: Vec<EnsembleStep>,
}

/// A step of an ensemble: a call of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnsembleStep {
    /// The model.
    pub model_name: String,
    /// Its version; the newest if it is below 1.
    pub model_version: i64,
    /// The tensor of the ensemble for each input of the model.
    pub input_map: BTreeMap<String, String>,
    /// The tensor of the ensemble for each output of the model.
    pub output_map: BTreeMap<String, String>,
}

/// How many answers a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTransactionPolicy {
    /// Whether clients have to take any number of answers, on a stream.
    pub decoupled: bool,
}

/// Whether responses are kept and sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigResponseCache {
    /// Whether they are.
    pub enable: bool,
}

/// The value of a parameter of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigParameter {
    /// The value.
    pub string_value: String,
}

/// Another shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigReshape {
    /// The shape that the model gets or gives.
    pub shape: Vec<i64>,
}

/// What becomes of a field of a model's `config.pbtxt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigNote {
    /// The path of the field, as in `dynamic_batching.priority_levels`.
    pub field: String,
    /// Whether it is honoured.
    pub treatment: ConfigTreatment,
    /// What it does here, or why it does nothing.
    pub note: String,
}

/// Whether a field of a configuration is honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigTreatment {
    /// It works as in Triton, unless the note says otherwise.
    Honoured,
    /// It has no effect here, and needs none.
    NotNeeded,
    /// It changes how Triton serves the model, and has no effect here.
    NotHonoured,
}

impl ConfigTreatment {
    /// The treatment in words.
    pub fn label(self) -> &'static str {
        match self {
            ConfigTreatment::Honoured => "honoured",
            ConfigTreatment::NotNeeded => "not needed",
            ConfigTreatment::NotHonoured => "not honoured",
        }
    }
}

/// Which versions of a model are served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigVersionPolicy {
    /// The highest ones.
    Latest {
        /// How many.
        num_versions: u32,
    },
    /// All.
    All {},
    /// The named ones.
    Specific {
        /// Their numbers.
        versions: Vec<u64>,
    },
}

/// Gathering of requests into batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicBatching {
    /// Sizes of batches to prefer.
    pub preferred_batch_size: Vec<u32>,
    /// How long a request waits for others although the model is idle; 0 if the daemon chooses the
    /// delay from measurements.
    pub max_queue_delay_microseconds: u64,
    /// Limits of the queue; `None` if they are the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_queue_policy: Option<ConfigQueuePolicy>,
}

/// Limits of a model's queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigQueuePolicy {
    /// The deadline of requests that state none or a later one; 0 for none.
    pub default_timeout_microseconds: u64,
    /// Most requests of each class that may wait; 0 for the daemon's limit.
    pub max_queue_size: u32,
}

/// Serving of sequences of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceBatching {
    /// How long an idle sequence is kept.
    pub max_sequence_idle_microseconds: u64,
    /// The state buffers.
    pub state: Vec<ConfigState>,
}

/// A state: an output that becomes an input of the next request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    /// The input.
    pub input_name: String,
    /// The output.
    pub output_name: String,
    /// `TYPE_` followed by the name of the type.
    pub data_type: String,
    /// Dimensions of the input; -1 for a variable one.
    pub dims: Vec<i64>,
}

/// An input or output in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigTensor {
    /// Its name.
    pub name: String,
    /// `TYPE_` followed by the name of the type.
    pub data_type: String,
    /// Dimensions; -1 for a variable one.
    pub dims: Vec<i64>,
    /// The shape of the model, if clients see another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reshape: Option<ConfigReshape>,
    /// The file with the names of an output's classes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label_filename: String,
}

impl From<&TensorMetadata> for ConfigTensor {
    fn from(tensor: &TensorMetadata) -> ConfigTensor {
        ConfigTensor {
            name: tensor.name.clone(),
            data_type: tensor.datatype.config_name(),
            dims: tensor.shape.clone(),
            reshape: None,
            label_filename: String::new(),
        }
    }
}

/// `GET /v2/models/stats` and `GET /v2/models/NAME/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatisticsList {
    /// One entry per model.
    pub model_stats: Vec<ModelStatistics>,
}

/// Statistics of a model since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// The model.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Time of the last request, in milliseconds since 1970; 0 before the first.
    pub last_inference: u64,
    /// Requests answered with a result; for a model with `max_batch_size` their rows.
    pub inference_count: u64,
    /// Runs of the model: fewer than requests if they are gathered into batches.
    pub execution_count: u64,
    /// Durations by phase.
    pub inference_stats: InferenceStatistics,
    /// Runs by their number of rows; empty for a model without `max_batch_size`.
    pub batch_stats: Vec<BatchStatistics>,
}

/// Runs of a model with the same number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStatistics {
    /// Rows of a run.
    pub batch_size: u64,
    /// Time writing inputs.
    pub compute_input: DurationStatistics,
    /// Time computing.
    pub compute_infer: DurationStatistics,
    /// Time reading outputs.
    pub compute_output: DurationStatistics,
}

/// Counts and total durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InferenceStatistics {
    /// Requests with a result, from submission to answer.
    pub success: DurationStatistics,
    /// Requests without a result.
    pub fail: DurationStatistics,
    /// Time in queues.
    pub queue: DurationStatistics,
    /// Time writing inputs.
    pub compute_input: DurationStatistics,
    /// Time computing.
    pub compute_infer: DurationStatistics,
    /// Time reading outputs.
    pub compute_output: DurationStatistics,
    /// Requests that were answered from the response cache, from their arrival at the cache to the
    /// answer.
    pub cache_hit: DurationStatistics,
    /// Requests that were not found in the response cache: the time of lookup and insertion.
    pub cache_miss: DurationStatistics,
}

/// A count and a total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationStatistics {
    /// Number of events.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub ns: u64,
}
