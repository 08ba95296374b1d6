//! The kernel graph: the only interface between compiler and runtime.
//!
//! A [`KernelGraph`] is the target-independent part of a compiled model: symbols, buffers, nodes
//! and their order, and a memory plan. A [`TargetImage`] holds, for one target, the launch of each
//! node and the facts about each kernel. A bundle (`*.kg`) is one file with the graph, the weights,
//! and the images and code of one or more targets.
//!
//! Not here: time, devices and clients (runtime), tensors and PTX (compiler).
//!
//! Invariants: every size, launch dimension and integer literal is an [`Expr`] over the graph's
//! symbols, so one bundle serves dynamic shapes. [`validate`] checks a graph and its targets once,
//! when a bundle is opened or written; all later code may index by id. All limits of the format are
//! in [`limits`].
//!
//! Start reading at [`graph`], then [`target`], [`layout`] and [`bundle`].

pub mod amd_abi;
mod batch;
pub mod bundle;
mod check;
mod condition;
pub mod constants;
mod dependencies;
pub mod disk_cache;
pub mod dkp;
mod dtype;
pub mod expr;
pub mod features;
pub mod flow;
pub mod graph;
mod hexadecimal;
pub mod host_abi;
pub mod inputs;
pub mod layout;
pub mod limits;
mod pieces;
pub mod profile;
pub mod rerun;
mod segment;
pub mod session;
mod size_range;
mod states;
pub mod strings;
pub mod target;
pub mod validate;

pub use batch::BatchAxis;
pub use bundle::{
    Bundle, BundleContents, BundleError, Mapped, Outline, TargetContents, decode_code, encode_code, write_bundle,
};
pub use check::Check;
pub use condition::{Condition, InputElement, Relation};
pub use constants::{Constant, ConstantDigest};
pub use dependencies::dependencies;
pub use disk_cache::{DiskCache, digest_of};
pub use expr::{Expr, SymbolId};
pub use features::Feature;
pub use flow::{Border, Flow, FlowItem, FlowLoop, LoopProgress, TooManyTrips};
pub use graph::*;
pub use inputs::{InputError, InputForm, InputSpec, Signature, bind_step, bind_symbols, undetermined_symbol};
pub use layout::{InvocationLayout, LaunchLayout, LayoutError, Place, invocation_bytes};
pub use profile::{LoadPoint, NodeProfile, Profile, ProfileError, ShapeProfile};
pub use rerun::{DisjointPair, NotRerunnable, RerunFact, kernel_may_run_again, node_may_run_again};
pub use segment::{Scalar, Segment};
pub use session::{Session, SessionSymbol, StateSpec};
pub use size_range::{InvalidSizeRange, SizeRange, SizeRanges, size_ranges};
pub use states::{InvalidStates, ModelOptions, StatePair, States};
pub use target::*;
