//! Dominators and liveness over numbered nodes, for [`crate::analysis`] and for targets that lower
//! code into their own graphs.
//!
//! Nodes are `0..count`. Edges are functions from a node to its successors and predecessors.
//! Nothing here recurses, however deep the graph is.

mod dominators;
mod liveness;

pub use dominators::Dominators;
pub use liveness::{Liveness, Mentions, TooManyLive};
