//! Calls of graphs, and calls in the background.

use crate::message::{Form, Input, Invoke};
use crate::refusal::Refusal;
use atoll_core::Class;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A call in the background.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeferredCall {
    /// A call of functions.
    Invoke(Invoke),
    /// A call of a graph.
    InvokeGraph(InvokeGraph),
}

/// A call of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvokeGraph {
    /// Its name.
    pub graph: String,
    /// Sources of its inputs: bytes, objects or futures.
    pub inputs: BTreeMap<String, Input>,
    /// The class; `None` for best-effort.
    pub class: Option<Class>,
    /// Cancels the call after this time, in microseconds.
    pub deadline_us: Option<u64>,
    /// Price limit of the call, in units of account; `None` for the graph's own limit.
    #[serde(default)]
    pub price_max: Option<f64>,
    /// An id by which a version of each function is chosen: calls with the same id get the same
    /// version.
    #[serde(default)]
    pub id: Option<String>,
}

/// A future of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FutureReport {
    /// Its name.
    pub future: String,
    /// The functions of its call in order; empty for a call of a graph.
    pub functions: Vec<String>,
    /// The graph that it calls; `None` for a call of functions.
    pub graph: Option<String>,
    /// Whether its call has ended.
    pub state: FutureState,
    /// Why its call failed.
    pub failure: Option<Refusal>,
    /// The outputs of its call; empty unless it is done.
    pub outputs: Vec<FutureOutput>,
    /// Bytes of the outputs that the daemon keeps for it.
    pub bytes: u64,
    /// Time since it began, in milliseconds.
    pub age_ms: u64,
    /// Time until the daemon forgets it, in milliseconds; `None` while its call runs.
    pub expires_in_ms: Option<u64>,
}

/// The state of the call of a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FutureState {
    /// It waits for other futures or a device, or runs.
    Running,
    /// It has ended, and its outputs are kept.
    Done,
    /// It failed, or was cancelled.
    Failed,
}

/// An output of a future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FutureOutput {
    /// Index of its function in the call.
    pub stage: usize,
    /// Its name.
    pub name: String,
    /// Its type and shape.
    pub form: Form,
}
