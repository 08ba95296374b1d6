//! Control flow between nodes: segments that run once, by a condition, or again and again.
//!
//! A graph without segments is a straight line. Otherwise the segments say which nodes run: each
//! node is in exactly one [`Segment::Nodes`], and these ascend. A node that does not run counts as
//! complete for the nodes that wait for it.

use crate::expr::Expr;
use crate::graph::{BufferId, DType, NodeId};
use serde::{Deserialize, Serialize};

/// A part of a graph that runs as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Segment {
    /// Nodes from `first` on, `end` not included, in their order.
    Nodes {
        /// The first.
        first: NodeId,
        /// The one behind the last.
        end: NodeId,
    },
    /// One of two lists of segments, by what a scalar on the device holds when the segment is
    /// reached.
    If {
        /// Anything but zero is true.
        condition: Scalar,
        /// Run where it is true.
        then: Vec<Segment>,
        /// Run where it is false.
        otherwise: Vec<Segment>,
    },
    /// Segments that run repeatedly. What one iteration hands to the next is in buffers that the
    /// body reads before it writes them.
    Loop {
        /// Iterations at most. Absent where only the condition ends the loop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trips: Option<Expr>,
        /// Looked at before every iteration; the loop ends where it is zero.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        condition: Option<Scalar>,
        /// Iterations after which the loop fails, whatever the condition says.
        trips_max: u64,
        /// What is repeated.
        body: Vec<Segment>,
    },
}

/// A number in a buffer on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scalar {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset in bytes, a multiple of the size of the type.
    pub offset: u64,
    /// An integer or `bool`.
    pub dtype: DType,
}
