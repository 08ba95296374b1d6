//! Explanations of admission decisions: why a request was placed as it was, or rejected.

use super::costs::KindId;
use super::event::{Arrival, GraphId, NodeId, RequestId};
use super::spec::Cost;
use crate::ids::Nanos;
use std::fmt;

/// A decision about a request, with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The request.
    pub request: RequestId,
    /// Its graph.
    pub graph: GraphId,
    /// The time of the decision.
    pub at: Nanos,
    /// The deadline that applied: the request's own or the graph's.
    pub deadline: Option<Nanos>,
    /// The price limit that applied: the request's own or the graph's.
    pub price_max: Option<Cost>,
    /// Number of all assignments of stages to kinds of devices.
    pub assignments: u64,
    /// Number of assignments that are optimal in latency and cost.
    pub optimal: usize,
    /// Number of optimal assignments that qualify under deadline and price limit. Not counted (0)
    /// if an existing placement served the request.
    pub qualifying: usize,
    /// The placements that were tried, in order.
    pub tried: Vec<Tried>,
    /// The decision.
    pub verdict: Verdict,
}

impl Explanation {
    /// The initial explanation. Its verdict is that the graph is unknown.
    pub(super) fn new(arrival: Arrival, at: Nanos) -> Explanation {
        Explanation {
            request: arrival.request,
            graph: arrival.graph,
            at,
            deadline: arrival.deadline,
            price_max: arrival.price_max,
            assignments: 0,
            optimal: 0,
            qualifying: 0,
            tried: Vec::new(),
            verdict: Verdict::Rejected(Reason::UnknownGraph),
        }
    }
}

/// A placement that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Whether it is a placement of earlier requests whose constants are all resident.
    pub is_reused: bool,
    /// The kind of device of each stage.
    pub kinds: Box<[KindId]>,
    /// The node of each stage; empty if a stage found no node with enough memory.
    pub nodes: Box<[NodeId]>,
    /// When it would end and its price, or why it failed.
    pub outcome: Result<(Nanos, Cost), Obstacle>,
}

/// Why a placement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No node of the kind has memory for the stage's constants.
    NoMemory {
        /// Index of the stage.
        stage: usize,
    },
    /// The stage would end after the deadline.
    Late {
        /// Index of the stage.
        stage: usize,
        /// Its earliest possible end.
        end: Nanos,
    },
    /// The price is above the limit.
    Dear(Cost),
    /// The node has the maximum number of reservations.
    Full(NodeId),
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The request is admitted.
    Admitted {
        /// Whether it runs on a placement of earlier requests.
        is_reused: bool,
        /// Its latest end, if runs take no longer than their measured costs.
        end: Nanos,
        /// Its price if all stages run alone.
        cost: Cost,
        /// Where and when its stages run.
        stages: Vec<PlannedStage>,
    },
    /// The request is rejected.
    Rejected(Reason),
}

/// A reserved run of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// The node.
    pub node: NodeId,
    /// The start.
    pub start: Nanos,
    /// The end.
    pub end: Nanos,
    /// Number of requests in the run, including this one.
    pub batch: u32,
    /// Whether constants are loaded for it.
    pub is_cold: bool,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no such graph.
    UnknownGraph,
    /// A request with this number is running.
    Duplicate,
    /// The deadline is not after the arrival.
    DeadlinePast,
    /// A stage has no node that it could run on, or all of them are lost or drained.
    NoDevices {
        /// Index of the stage.
        stage: usize,
    },
    /// The constants of a stage are larger than the memory of every node that could run it.
    TooLarge {
        /// Index of the stage.
        stage: usize,
        /// Their size in bytes, on the kind where they are smallest.
        bytes: u64,
    },
    /// The fastest assignment misses the deadline even on an idle cluster.
    TooSlow {
        /// Latency of the fastest assignment.
        fastest: Nanos,
    },
    /// Even the cheapest assignment exceeds the price limit.
    TooDear {
        /// Its cost.
        cheapest: Cost,
    },
    /// No assignment meets both the deadline and the price limit.
    NoneIsBoth {
        /// Latency of the fastest assignment within the price limit.
        latency: Nanos,
    },
    /// Running and reserved requests leave too little memory.
    NoMemory,
    /// Running and reserved requests leave too little time.
    Busy {
        /// The earliest end, among the placements tried, of a stage that would end too late.
        end: Nanos,
    },
    /// A node has the maximum number of reservations.
    Full(NodeId),
    /// The graph has no plans, so the limits of a request cannot be kept.
    Unplanned,
}

impl Reason {
    /// All labels, for metrics.
    pub const LABELS: [&str; 12] = [
        "unknown_graph",
        "duplicate",
        "deadline_past",
        "no_devices",
        "too_large",
        "too_slow",
        "too_dear",
        "none_is_both",
        "no_memory",
        "busy",
        "full",
        "unplanned",
    ];

    /// Its index in [`Reason::LABELS`].
    pub fn index(&self) -> usize {
        match self {
            Reason::UnknownGraph => 0,
            Reason::Duplicate => 1,
            Reason::DeadlinePast => 2,
            Reason::NoDevices { .. } => 3,
            Reason::TooLarge { .. } => 4,
            Reason::TooSlow { .. } => 5,
            Reason::TooDear { .. } => 6,
            Reason::NoneIsBoth { .. } => 7,
            Reason::NoMemory => 8,
            Reason::Busy { .. } => 9,
            Reason::Full(_) => 10,
            Reason::Unplanned => 11,
        }
    }

    /// Whether the deadline of the request alone is the cause, so that the request would fail later.
    pub fn is_of_deadline(&self) -> bool {
        matches!(self, Reason::DeadlinePast | Reason::TooSlow { .. })
    }

    /// Whether the limits of the request are the cause, so that a retry does not help.
    pub fn is_of_limits(&self) -> bool {
        matches!(
            self,
            Reason::DeadlinePast
                | Reason::TooSlow { .. }
                | Reason::TooDear { .. }
                | Reason::NoneIsBoth { .. }
                | Reason::Unplanned
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Nanos| time.0 as f64 / 1e6;
        match self {
            Reason::UnknownGraph => write!(f, "there is no such graph"),
            Reason::Duplicate => write!(f, "a request with this number is running"),
            Reason::DeadlinePast => write!(f, "the deadline has passed; state a later one"),
            Reason::NoDevices { stage } => write!(f, "no device is left that can run stage {stage}"),
            Reason::TooLarge { stage, bytes } => {
                write!(f, "the constants of stage {stage} have {bytes} bytes, more than every device that can run it")
            }
            Reason::TooSlow { fastest } => write!(
                f,
                "the graph takes at least {:.3} ms, even on idle devices; state a later deadline",
                ms(*fastest)
            ),
            Reason::TooDear { cheapest } => {
                write!(f, "the graph costs at least {:.9} units; state a higher price limit", cheapest.units())
            }
            Reason::NoneIsBoth { latency } => write!(
                f,
                "within the price limit the graph takes at least {:.3} ms; state a later deadline or a higher limit",
                ms(*latency)
            ),
            Reason::NoMemory => write!(f, "other requests need the memory of the devices; try again later"),
            Reason::Busy { .. } => write!(
                f,
                "the devices are busy: a stage would end after the deadline; try again later, or state a later deadline"
            ),
            Reason::Full(node) => write!(f, "too many requests wait for {node}; try again later"),
            Reason::Unplanned => write!(f, "the graph cannot be planned"),
        }
    }
}
