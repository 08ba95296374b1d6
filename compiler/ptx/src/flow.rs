//! Analyses of control flow over numbers: the toolkit of [`crate::analysis`] and of the targets,
//! which lower code into graphs of their own.
//!
//! Nodes are `0..count`; edges are given as functions from a node to its successors and
//! predecessors. Whatever the depth of a graph, nothing here recurses.

mod dominators;

pub use dominators::Dominators;
