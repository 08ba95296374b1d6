//! Events and actions of the policies for graphs.

use super::explain::Explanation;
use super::spec::Cost;
use crate::ids::Nanos;
use std::fmt;

/// A request to a graph. The caller assigns the numbers and uses none twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A graph, by its index among the deployed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub u32);

/// A function of graphs. Stages whose functions have one name share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// A device that runs one stage at a time, by its index in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A request as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub request: RequestId,
    /// The graph that it calls.
    pub graph: GraphId,
    /// Its deadline as a time; `None` for the graph's own.
    pub deadline: Option<Nanos>,
    /// Its price limit; `None` for the graph's own.
    pub price_max: Option<Cost>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived.
    Arrived(Arrival),
    /// The constants of a function are on a node.
    Loaded {
        /// The node.
        node: NodeId,
        /// The function.
        function: FunctionId,
    },
    /// The run that a node was given has ended.
    Ended {
        /// The node.
        node: NodeId,
    },
    /// The condition of a stage was evaluated, as [`Action::Decide`] asked.
    Decided {
        /// The request.
        request: RequestId,
        /// Index of the stage.
        stage: usize,
        /// Whether the stage runs.
        runs: bool,
    },
    /// The client does not wait any more. Ignored if the request has ended.
    Cancelled {
        /// The request.
        request: RequestId,
    },
    /// A node failed for good.
    Lost {
        /// The node.
        node: NodeId,
    },
    /// Time passed.
    Tick,
}

/// What the driver has to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The request is admitted, and why as it is.
    Admitted(Box<Explanation>),
    /// The request is rejected, and why. It has ended.
    Rejected(Box<Explanation>),
    /// Unload the constants of a function. Their memory is used by the next load.
    Unload {
        /// The node.
        node: NodeId,
        /// The function.
        function: FunctionId,
    },
    /// Load the constants of a function, and report [`Event::Loaded`].
    Load {
        /// The node.
        node: NodeId,
        /// The function.
        function: FunctionId,
    },
    /// Run one function for one or more stages of requests, and report [`Event::Ended`].
    Start {
        /// The node.
        node: NodeId,
        /// The requests, each with the index of its stage.
        batch: Vec<(RequestId, usize)>,
    },
    /// Evaluate the condition of a stage, and report [`Event::Decided`].
    Decide {
        /// The request.
        request: RequestId,
        /// Index of the stage.
        stage: usize,
    },
    /// All stages of a request have ended or were skipped. It has ended.
    Finished {
        /// The request.
        request: RequestId,
        /// The price of its runs; skipped stages cost nothing.
        bill: Cost,
        /// Whether its deadline had passed.
        is_late: bool,
    },
    /// A node that the request needed was lost. It has ended, and may be sent again: functions keep
    /// no state.
    Failed {
        /// The request.
        request: RequestId,
        /// The node.
        node: NodeId,
    },
}
