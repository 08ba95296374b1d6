//! A plain scalar interpreter of PTX: what the kernels mean, thread by thread, written to be
//! obviously right rather than fast.
//!
//! It is the oracle of the differential tests and a device that checks every access. It shares
//! nothing with the lowerings but the language crate: an instruction is decoded here anew, so that
//! a misunderstanding there shows as a difference.
//!
//! | module | what |
//! |---|---|
//! | `program` | a kernel with everything it can reach, decoded once; what is not covered is refused there, by opcode and line |
//! | `decode` | one instruction to one operation |
//! | `alu`, `format` | computing registers from registers; floating-point formats with exact arithmetic and every rounding |
//! | `memory` | buffers far apart, each access held to its own |
//! | `block` | threads, warps and barriers of one block; can be stopped after any number of instructions |
//! | `warp`, `matrix` | instructions that the lanes of a warp do together |
//! | `launch` | all blocks of a launch, a few at a time |
//!
//! What it is not: a model of time or of weak memory. One instruction of one thread happens at a
//! time and is seen by all at once.
//!
//! Invariants: no PTX makes this crate panic; a run ends by its step limit at the latest; the same
//! seed gives the same run.
//!
//! Numbers: what PTX says is rounded is rounded exactly so. Approximate functions (`ex2`, `lg2`,
//! `sin`, `cos`, `tanh`, `rsqrt`, `.approx`, `.full`) are computed in f64 and rounded once, and
//! products of matrices are summed in f64: whoever compares them states a bound. NaNs have NVIDIA's
//! canonical bits.
//!
//! Not covered, and refused: textures, surfaces, tensor maps, clusters, `wgmma`, `tcgen05`,
//! mbarriers, sparse and sub-byte matrices, `alloca`, shuffles and votes without `.sync`.

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
