//! The commands of `atoll bench`, and helpers that they share with the other commands of the
//! program.
//!
//! [`commands`] has one file per measurement. The other modules are shared helpers: starting an
//! engine from flags ([`engine`]), opening and invoking a model ([`artifact`], [`invoker`]), inputs
//! and outputs ([`tensors`], [`npy`]), printing and drawing ([`output`], [`drawing`]), errors
//! ([`failure`]), and printing and saving the results of measurements (`report`, `record`).
//!
//! Not here: the command line as a whole, and commands that do not measure. Both are in
//! `tools/atoll`, which uses this crate.
//!
//! Start reading at [`commands`].
//!
//! # Invariants
//!
//! - Compared variants run alternately, in the same process or on the same machine, so that
//!   disturbances affect all of them.
//! - A measurement returns its result as text and as JSON. Only `report` prints and saves it. Names
//!   of JSON fields end in their units.

pub mod artifact;
pub mod cache;
pub mod client;
pub mod commands;
pub mod compiler;
pub mod credentials;
pub mod device_name;
mod devices;
pub mod drawing;
pub mod engine;
pub mod failure;
mod figures;
pub mod grid;
pub mod invoker;
pub mod isolation;
pub mod npy;
pub mod output;
pub mod profiler;
#[cfg(feature = "compiler")]
mod python;
pub mod random;
#[cfg(feature = "compiler")]
pub mod recompiler;
mod record;
mod report;
pub mod samples;
pub mod symbols;
pub mod tensors;
