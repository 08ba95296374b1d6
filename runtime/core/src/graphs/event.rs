//! Events and actions of [`Admission`](super::Admission) and [`Fifo`](super::Fifo).

use super::explain::Explanation;
use super::spec::Cost;
use crate::ids::Nanos;
use std::fmt;

/// A request to a graph. The caller assigns the numbers and never reuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A deployed graph, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub u32);

/// A function that stages call. Stages whose functions have the same name share one id.
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
    /// The run that [`Action::Start`] began on a node has ended.
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
    /// The client cancelled the request. Ignored if the request has ended.
    Cancelled {
        /// The request.
        request: RequestId,
    },
    /// A node failed permanently.
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
    /// The request is admitted; the explanation has its plan.
    Admitted(Box<Explanation>),
    /// The request is rejected and has ended; the explanation has the reason.
    Rejected(Box<Explanation>),
    /// Unload the constants of a function. The next load uses their memory.
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
    /// A request has ended: each of its stages has run or was skipped.
    Finished {
        /// The request.
        request: RequestId,
        /// The price of its runs; skipped stages cost nothing.
        bill: Cost,
        /// Whether it ended after its deadline.
        is_late: bool,
    },
    /// A request has ended because a node that it needed was lost. The client may send it again,
    /// since functions keep no state.
    Failed {
        /// The request.
        request: RequestId,
        /// The node.
        node: NodeId,
    },
}
