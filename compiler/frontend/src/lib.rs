//! From a model artifact to a tensor graph: read once, checked once, then changed by small named
//! passes.
//!
//! [`onnx::import`] turns a file into a [`tensor_graph::TensorGraph`] of a small closed set of
//! operators, with symbolic shapes and folded constants. [`transform::transform`] fuses it. The
//! code generator lowers it to a kernel graph, in which [`memory_plan::plan`] then gives every
//! temporary buffer its place. [`mod@reference`] runs a tensor graph slowly and plainly: the oracle
//! of the whole compiler.
//!
//! This crate knows no kernels, targets, devices or time. A graph that
//! [`tensor_graph::TensorGraph::verify`] accepts never makes a later stage panic.

pub mod batch;
pub mod memory_plan;
pub mod nest;
pub mod onnx;
pub mod program;
pub mod reference;
mod resample;
pub mod size;
pub mod tensor;
pub mod tensor_graph;
mod text;
pub mod transform;
pub mod verify;
