//! Reports about the admission of requests to a graph. Prices are in units of account, times in
//! nanoseconds.

use serde::{Deserialize, Serialize};

/// What is known about the costs of a graph, and what is decided with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionReport {
    /// The kinds of devices that stages can run on: devices of one kind and one price.
    pub kinds: Vec<KindEntry>,
    /// Measured costs, by stage and kind.
    pub costs: Vec<CostEntry>,
    /// Stages that are still to be measured, each with the kind that is next. Until there are none,
    /// requests run without reservations.
    pub missing: Vec<MissingEntry>,
    /// Number of all assignments of stages to kinds.
    pub assignments: u64,
    /// Those that no other one beats in both time and price: the Pareto set, the fastest first.
    pub optimal: Vec<AssignmentEntry>,
    /// The price limit of requests that state none.
    pub price_max: Option<f64>,
    /// Which of several plans is taken: `cost` or `speed`.
    pub prefer: String,
    /// The decision about a request that would arrive now; `None` while the graph is measured.
    pub now: Option<DecisionEntry>,
    /// The last decision about a request.
    pub last: Option<DecisionEntry>,
    /// Why there are no costs although all stages are measured.
    pub failure: Option<String>,
}

/// A kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindEntry {
    /// Its devices; `daemon` for the daemon itself, which runs built-in stages.
    pub kind: String,
    /// The price of a second.
    pub price_per_s: f64,
}

/// What a stage costs on a kind of device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostEntry {
    /// The stage.
    pub stage: String,
    /// The kind.
    pub kind: String,
    /// Time of a run, near the longest of the latest ones.
    pub exec_ns: u64,
    /// Time to load its constants; `None` if they never had to be loaded.
    pub load_ns: Option<u64>,
    /// Number of runs that this is from.
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
    /// Time of a request that waits for nothing.
    pub latency_ns: u64,
    /// Price if no stage is skipped.
    pub price: f64,
}

/// A decision about a request. Times are since its arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionEntry {
    /// The deadline that was kept to.
    pub deadline_ns: Option<u64>,
    /// The price limit that was kept to.
    pub price_max: Option<f64>,
    /// How many optimal assignments are fast and cheap enough; 0 if an earlier placement was used
    /// again, before they were counted.
    pub qualifying: u64,
    /// The placements that were tried, in order.
    pub tried: Vec<TriedEntry>,
    /// Whether the request is admitted.
    pub admitted: bool,
    /// Why it is rejected, for programs: a label of the metric `atoll_graph_rejections_total`.
    pub reason: Option<String>,
    /// The decision, for people.
    pub text: String,
    /// When it ends at the latest, if runs take no longer than measured.
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
    /// Whether earlier requests ran on it.
    pub reused: bool,
    /// Its end and price, or what is against it.
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
