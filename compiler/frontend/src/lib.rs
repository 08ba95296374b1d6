//! From a model artifact to a tensor graph: read once, checked once, then changed by small named passes.
//!
//! The product is a [`tensor_graph::TensorGraph`] of a small closed set of operators, with symbolic shapes, folded constants and fused chains.
//! It knows no kernels and no targets.

pub mod tensor_graph;
