//! The compiler's frontend: imports an ONNX model as a tensor graph, verifies it, and rewrites it
//! by small named passes.
//!
//! - [`onnx::import`] reads a file into a [`tensor_graph::TensorGraph`]: a small closed set of
//!   operators with symbolic shapes and folded constants.
//! - [`transform::transform`] fuses operators and removes redundant ones.
//! - [`batch::analyse`] proves that the rows of a batch are independent.
//! - [`memory_plan::plan`] assigns an offset to every temporary buffer of the kernel graph that the
//!   code generator makes from the tensor graph.
//! - [`mod@reference`] interprets a tensor graph, slowly and plainly: the oracle of the compiler's
//!   tests.
//!
//! Not here: kernels, targets, devices, clocks. Code generation is `atoll-codegen`.
//!
//! Invariants: untrusted bytes are checked once, at import; every limit is a named constant. A
//! graph that [`tensor_graph::TensorGraph::verify`] accepts never makes a later stage panic. Every
//! dimension is an expression over symbols, so one graph serves all shapes that the ranges of its
//! symbols allow.
//!
//! Start reading at [`tensor_graph`] (the IR), then `onnx` (the importer) and `onnx/ops` (one file
//! per operator family).

pub mod batch;
pub mod control;
pub mod memory_plan;
pub mod narrow;
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
