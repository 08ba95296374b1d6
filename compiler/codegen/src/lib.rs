//! Code generation: a tensor graph becomes a kernel graph, and for each target the PTX kernels of
//! its nodes.
//!
//! ```text
//! TensorGraph ── schedule ──▶ Schedule (buffers, nodes, weights) ── emit(target) ──▶ Emitted (module, launches)
//! ```
//!
//! [`schedule`] knows no target: it gives every value a place, stores constants once, and makes one
//! kernel node of almost every operator. [`emit`] writes the kernels for one [`TargetDescription`];
//! kernels with the same text are one. What is fixed when a model is compiled (windows, strides,
//! channel counts) is a number in the text, what is not is a parameter whose value is an expression
//! over the graph's symbols.
//!
//! Invariants of every kernel:
//! - a block writes only elements of its node's outputs, and reads none but those it wrote itself:
//!   running a block again is harmless;
//! - block sizes are multiples of 32, `%tid.y` (and so all but `%tid.x`) is the same for the lanes
//!   of a warp;
//! - barriers are reached by all threads of a block; nobody exits early;
//! - elements are indexed in 31 bits, addresses are computed in 64.
//!
//! What it is not: it plans no memory, injects no preemption checks (passes do) and knows nothing
//! of the model's source format.

mod emit;
mod error;
mod kernels;
mod math;
mod math64;
mod point;
mod product;
mod real;
mod scalar;
mod schedule;
mod strides;
mod sweep;
mod target;
mod variants;
mod warps;
mod window;
mod writer;

pub use emit::{Emitted, EmittedKernel, emit};
pub use error::CodegenError;
pub use schedule::{Schedule, Tensor, Weight, Work, WorkKind, schedule};
pub use target::{GemmTile, HostLevel, RegisterLimits, TargetDescription};
