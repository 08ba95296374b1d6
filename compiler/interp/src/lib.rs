//! A scalar interpreter of PTX, thread by thread, written to be obviously correct rather than fast.
//!
//! It is the oracle of the differential tests, and a device that checks every memory access. It
//! shares only the PTX crate with the lowerings and decodes instructions itself, so that an error
//! in a lowering shows as a difference.
//!
//! - `program`: a kernel with all functions and variables it can reach, decoded once; unsupported
//!   instructions are rejected here, with opcode and line.
//! - `decode`: one instruction to one operation.
//! - `alu`, `format`: register arithmetic; floating-point formats with exact arithmetic and every
//!   rounding mode.
//! - `memory`: buffers at distant addresses; every access is checked against its buffer.
//! - `block`: threads, warps and barriers of one block; a block can be stopped after any number of
//!   instructions.
//! - `warp`, `matrix`: instructions that the lanes of a warp execute together.
//! - `launch`, `run`: all blocks of a launch, a few at a time.
//!
//! Not here: a model of time or of weak memory ordering. The interpreter executes one instruction
//! of one thread at a time, and its effect is visible to all threads at once.
//!
//! Invariants: no PTX makes this crate panic; every run ends, at the latest by its step limit; the
//! same seed gives the same run.
//!
//! Numbers: operations that PTX defines as correctly rounded are rounded exactly. Approximate
//! functions (`ex2`, `lg2`, `sin`, `cos`, `tanh`, `rsqrt`, `.approx`, `.full`) are computed in f64
//! and rounded once, and matrix products are summed in f64. A comparison with another device
//! therefore needs a tolerance for these. NaNs have NVIDIA's canonical bits.
//!
//! Not supported, and rejected: textures, surfaces, tensor maps, clusters, `wgmma`, `tcgen05`,
//! mbarriers, sparse and sub-byte matrices, `alloca`, shuffles and votes without `.sync`.
//!
//! Start reading at `run.rs`, then `block.rs`.

mod access;
mod alu;
mod atomic;
mod block;
mod call;
mod decode;
mod fault;
mod format;
mod fragments;
mod lanes;
mod launch;
mod matrix;
mod memory;
mod op;
mod print;
mod program;
mod run;
mod symbols;
mod warp;
mod warp_op;

pub use block::{BlockRun, Progress};
pub use fault::{Fault, FaultKind, Near, Waiting};
pub use launch::{Launch, LaunchError, Options};
pub use memory::{Access, Memory};
pub use program::{Program, Refusal};
pub use run::{Report, RunError, run};
