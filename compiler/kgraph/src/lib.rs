//! The kernel graph: the only seam between compiler and runtime (design D7).
//!
//! A [`KernelGraph`] is the target-independent skeleton of a compiled model: symbols, buffers,
//! nodes and their order, and a memory plan. A [`TargetImage`] says for one target how each node is
//! launched and holds the kernels' code. A bundle (`*.kg`) is one file with the graph, the weights
//! and one or more targets.
//!
//! Left of this crate nothing knows time, devices or clients; right of it nothing knows tensors or
//! PTX.
//!
//! Invariant: every size, launch dimension and literal is an [`Expr`] over the graph's symbols, so
//! one bundle serves dynamic shapes.

mod batch;
pub mod bundle;
mod check;
mod condition;
pub mod constants;
mod dependencies;
pub mod disk_cache;
pub mod dkp;
pub mod expr;
pub mod features;
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
pub mod target;
pub mod validate;

pub use batch::BatchAxis;
pub use bundle::{Bundle, BundleContents, BundleError, TargetContents, write_bundle};
pub use check::Check;
pub use condition::{Condition, InputElement, Relation};
pub use constants::{Constant, ConstantDigest};
pub use dependencies::dependencies;
pub use disk_cache::{DiskCache, digest_of};
pub use expr::{Expr, SymbolId};
pub use features::Feature;
pub use graph::*;
pub use inputs::{InputError, InputForm, InputSpec, Signature, bind_step, bind_symbols, undetermined_symbol};
pub use layout::{InvocationLayout, LaunchLayout, LayoutError, Place, invocation_bytes};
pub use profile::{LoadPoint, NodeProfile, Profile, ProfileError, ShapeProfile};
pub use rerun::{DisjointPair, NotAgain, RerunFact, kernel_may_run_again, node_may_run_again};
pub use segment::{Scalar, Segment};
pub use session::{Session, SessionSymbol, StateSpec};
pub use size_range::{NoSizeRange, SizeRange, SizeRanges, size_ranges};
pub use states::{ModelOptions, NoStates, StatePair, States};
pub use target::*;
