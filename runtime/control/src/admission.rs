//! Reports about the admission of requests to a graph. Prices are in units of account, times in
//! nanoseconds.

use serde::{Deserialize, Serialize};

/// The measured costs of a graph, and the decisions about its requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionReport {
    /// The kinds of devices on which stages can run. Devices of one kind have the same price.
    pub kinds: Vec<KindEntry>,
    /// Measured costs, by stage and kind.
    pub costs: Vec<CostEntry>,
    /// Stages that are still to be measured, each with the next kind. Requests run without
    /// reservations until all stages are measured.
    pub missing: Vec<MissingEntry>,
    /// Number of possible assignments of stages to kinds.
    pub assignments: u64,
    /// The assignments that no other one beats in both time and price: the Pareto set, the fastest
    /// first.
    pub optimal: Vec<AssignmentEntry>,
    /// The price limit of requests that state no price limit.
    pub price_max: Option<f64>,
    /// Which plan is chosen if several meet the limits: `cost` for the cheapest, `speed` for the
    /// fastest, `random` for any.
    pub prefer: String,
    /// The decision that a request would get now; `None` until the graph is measured.
    pub now: Option<DecisionEntry>,
    /// The last decision about a request.
    pub last: Option<DecisionEntry>,
    /// The part of each deadline that plans keep free, from 0 to 0.5. It grows with late requests.
    #[serde(default)]
    pub kept_free: f64,
    /// Why the graph cannot be planned although all stages are measured.
    pub failure: Option<String>,
}

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindEntry {
    /// Its devices; `daemon` for the daemon itself, which runs built-in stages.
    pub kind: String,
    /// Its price per second.
    pub price_per_s: f64,
}

/// The cost of a stage on a kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostEntry {
    /// The stage.
    pub stage: String,
    /// The kind.
    pub kind: String,
    /// Time of a run: the longest of the latest runs, except for one outlier in twenty.
    pub exec_ns: u64,
    /// Time to load its constants; `None` if they never had to be loaded.
    pub load_ns: Option<u64>,
    /// Number of runs that were measured.
    pub samples: u64,
    /// Price of a run.
    pub price: f64,
}

/// A stage that is still to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingEntry {
    /// The stage.
    pub stage: String,
    /// The kind of device.
    pub kind: String,
}

/// An assignment of stages to kinds of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssignmentEntry {
    /// The kind of each stage.
    pub kinds: Vec<String>,
    /// Time of a request without waiting.
    pub latency_ns: u64,
    /// Price if no stage is skipped.
    pub price: f64,
}

/// A decision about a request. Times are since its arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionEntry {
    /// The deadline of the request.
    pub deadline_ns: Option<u64>,
    /// The price limit of the request.
    pub price_max: Option<f64>,
    /// Number of optimal assignments that meet the limits; 0 if an earlier placement was reused,
    /// since they are not counted then.
    pub qualifying: u64,
    /// The placements that were tried, in order.
    pub tried: Vec<TriedEntry>,
    /// Whether the request is admitted.
    pub admitted: bool,
    /// The reason of a rejection for programs: a label of the metric
    /// `atoll_graph_rejections_total`.
    pub reason: Option<String>,
    /// The decision as a text.
    pub text: String,
    /// When it ends at the latest if runs take no longer than measured.
    pub end_ns: Option<u64>,
    /// Its price if no stage is skipped.
    pub price: Option<f64>,
    /// Where and when its stages run.
    pub stages: Vec<PlacedEntry>,
}

/// A placement that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriedEntry {
    /// The device of each stage; empty if there was no room. `daemon` for the daemon itself.
    pub devices: Vec<String>,
    /// Whether it is the placement of an earlier request.
    pub reused: bool,
    /// Its end and price, or why it is not possible.
    pub outcome: String,
}

/// The reserved run of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedEntry {
    /// The stage.
    pub stage: String,
    /// The device; `daemon` for the daemon itself.
    pub device: String,
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// Whether constants are loaded for it.
    pub cold: bool,
}
