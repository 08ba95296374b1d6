//! Calls of graphs, and calls in the background.

use crate::message::{Input, Invoke};
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
