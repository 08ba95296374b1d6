//! Code generation: lowers a tensor graph to a kernel graph and, per target, to the PTX kernels of
//! its nodes.
//!
//! ```text
//! TensorGraph ── schedule ──▶ Schedule ── emit(target) ──▶ Emitted
//!                             (buffers, nodes, weights)    (module, launches)
//! ```
//!
//! [`schedule`] is target-independent: it assigns every value a location, stores constants once,
//! and turns almost every operator into one kernel node. [`emit`] writes the kernels for one
//! [`TargetDescription`]; kernels with equal text are shared. Values that are fixed at compile time
//! (windows, strides, channel counts) are literals in the text. All other values are kernel
//! parameters, computed from the graph's symbols.
//!
//! Invariants of every kernel:
//!
//! - A block writes only elements of its node's outputs and the words of its checks. It reads an
//!   output element only if it wrote that element itself. So running a block again is safe.
//! - The number of threads of a block is a multiple of 32. `%tid.y` (and every other index except
//!   `%tid.x`) is the same for all lanes of a warp.
//! - All threads of a block reach every barrier; no thread exits early.
//! - Elements are indexed in 31 bits, addresses are computed in 64.
//!
//! Not here: the memory plan (`atoll-frontend`), preemption checks (`atoll-passes` inserts them),
//! and anything about ONNX.
//!
//! Start reading at `schedule.rs` and `emit.rs`, then `writer.rs` (writing a kernel) and `kernels`
//! (one file per family).

mod emit;
mod error;
mod kernels;
mod math;
mod math64;
mod narrow;
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
