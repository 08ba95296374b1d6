//! CPU stages of graphs of functions: programs that run in a jailed process of their tenant, and
//! never in the daemon.
//!
//! A program decodes an image, resizes one, tokenises text, or is a WASM module of the tenant. All
//! of them read bytes from a client or a tenant, so all of them run in the same jail. There is one
//! process per tenant ([`StageProcess`]). It gets programs and tensors over a pipe, and runs one
//! call at a time:
//!
//! ```text
//! daemon                                       the tenant's stage process, in a jail
//! StageProcess ── prepare: program, file ─pipe─▶ serve: checks it, compiles it, keeps it
//!              ── run: input tensors ─────pipe─▶
//!              ◀─ output tensors, or the cause ─
//! ```
//!
//! The daemon does not trust the process: it limits the bytes that it reads, checks every form, and
//! kills the process at the time limit of a call.
//!
//! Not here: the jail (`atoll-executor`), which the program enters before it calls [`serve`]; graphs
//! and their manifests (`atoll-server`).
//!
//! Start reading at [`Program`], then [`serve`].
//!
//! # Invariants
//!
//! - A call of a program sees its own inputs only. WASM modules start from their initial state in
//!   every call.
//! - The bytes that a program allocates are bounded by `limits.rs`, and by the limit of the process.
//! - An error of a program is reported as a text for its owner and does not end the process. Only
//!   the limits of the process end it.

mod image;
pub mod limits;
mod options;
mod process;
mod program;
mod resize;
mod serve;
mod tensor;
mod tokenizer;
mod wasm;
mod wire;

pub use atoll_device::ProcessGroups;
pub use options::{DecodeOptions, Filter, ResizeOptions, TokenizeOptions, WasmOptions};
pub use process::{CallError, StageConfig, StageProcess};
pub use program::{Prepared, Program, Signature};
pub use serve::{Ready, serve};
pub use tensor::{Form, Tensor};
