//! Reports about graphs of functions.

use crate::admission::AdmissionReport;
use atoll_protocol::TensorMetadata;
use serde::{Deserialize, Serialize};

/// A deployed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphReport {
    /// Its name within the tenant.
    pub name: String,
    /// Its model name over HTTP and gRPC.
    pub model: String,
    /// Why it cannot be called, for example because a function was removed. Inputs, outputs and
    /// stages are then empty.
    pub failure: Option<String>,
    /// The deadline of requests that state no deadline, in microseconds.
    pub deadline_us: Option<u64>,
    /// Its inputs.
    pub inputs: Vec<TensorMetadata>,
    /// Its outputs.
    pub outputs: Vec<TensorMetadata>,
    /// Its stages in order.
    pub stages: Vec<GraphStage>,
    /// Time of a request that neither waits nor skips a stage, in nanoseconds, by the measured
    /// times of its functions; `None` until each of them has been called.
    pub latency_ns: Option<u64>,
    /// Bytes of functions' inputs that other functions of the graph made, and that were copied on
    /// the device, since the graph was deployed or the daemon started.
    #[serde(default)]
    pub handed_over_bytes: u64,
    /// The same for bytes that were copied through host memory.
    #[serde(default)]
    pub copied_bytes: u64,
    /// The admission of its requests; `None` in lists, and for a daemon without admission.
    #[serde(default)]
    pub admission: Option<Box<AdmissionReport>>,
}

/// A stage of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphStage {
    /// Its name.
    pub name: String,
    /// The function that it calls; `None` for a built-in one.
    pub function: Option<String>,
    /// The built-in function.
    pub builtin: Option<String>,
    /// The devices of its function, separated by commas.
    pub device: Option<String>,
    /// The stages that have to end before it, by name.
    pub after: Vec<String>,
    /// When it runs; always if `None`.
    pub when: Option<String>,
    /// Mean time of a call of its function, without its time in queues, in nanoseconds.
    pub mean_ns: Option<u64>,
    /// The versions of its function, if it has several.
    #[serde(default)]
    pub versions: Vec<VersionEntry>,
}

/// A version of a stage's function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionEntry {
    /// The function.
    pub function: String,
    /// Its weight, relative to the sum of all weights.
    pub weight: u32,
    /// Requests of the graph that it served.
    pub success: u64,
    /// Requests of the graph that failed on it.
    pub failure: u64,
    /// Mean time of the requests that it served, in nanoseconds.
    pub mean_ns: Option<u64>,
}
