//! Control flow between nodes: segments that run once, conditionally, or repeatedly.
//!
//! In a graph without segments, all nodes run in order. Otherwise each node is in exactly one
//! [`Segment::Nodes`], in ascending order. A node that does not run counts as complete for its
//! dependents.

use crate::expr::Expr;
use crate::graph::{BufferId, DType, NodeId};
use serde::{Deserialize, Serialize};

/// A unit of control flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Segment {
    /// The nodes `first..end`, in order.
    Nodes {
        /// The first node.
        first: NodeId,
        /// One past the last node.
        end: NodeId,
    },
    /// One of two lists of segments, selected by a scalar on the device when the segment is
    /// reached.
    If {
        /// True if nonzero.
        condition: Scalar,
        /// Segments to run if true.
        then: Vec<Segment>,
        /// Segments to run if false.
        otherwise: Vec<Segment>,
    },
    /// Segments that run repeatedly. Values pass from one iteration to the next in buffers that the
    /// body reads before it writes them.
    Loop {
        /// Maximum number of iterations. If neither this nor `count` is given, only the condition
        /// ends the loop.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trips: Option<Expr>,
        /// Maximum number of iterations, as an integer on the device. It is read once, when the
        /// loop is reached. A negative number counts as 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<Scalar>,
        /// Read before every iteration; the loop ends if it is zero.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        condition: Option<Scalar>,
        /// Iterations after which the invocation fails, whatever the condition is.
        trips_max: u64,
        /// The segments to repeat.
        body: Vec<Segment>,
    },
}

/// An integer or `bool` in a buffer on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scalar {
    /// The buffer.
    pub buffer: BufferId,
    /// Offset in bytes, a multiple of the type's size.
    pub offset: u64,
    /// An integer or `bool`.
    pub dtype: DType,
}

impl Segment {
    /// Calls `seen` with every scalar that is read at the borders of these segments.
    pub(crate) fn visit_scalars(segments: &[Segment], seen: &mut impl FnMut(&Scalar)) {
        for segment in segments {
            match segment {
                Segment::Nodes { .. } => {}
                Segment::If { condition, then, otherwise } => {
                    seen(condition);
                    Segment::visit_scalars(then, seen);
                    Segment::visit_scalars(otherwise, seen);
                }
                Segment::Loop { count, condition, body, .. } => {
                    count.iter().chain(condition).for_each(&mut *seen);
                    Segment::visit_scalars(body, seen);
                }
            }
        }
    }
}
