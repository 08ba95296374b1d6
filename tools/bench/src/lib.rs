//! Measuring: `atoll bench`, and what it has in common with the other commands of the program.
//!
//! [`commands`] has a file for each thing that is measured. The other modules are what commands
//! share: how an engine is started from flags ([`engine`]), how a model is opened and asked
//! ([`artifact`], [`invoker`]), inputs and outputs ([`tensors`], [`npy`]), what is printed and
//! drawn ([`output`], [`drawing`]), and whose fault a failure is ([`failure`]).
//!
//! Not here: the command line as a whole, and every command that does not measure; both are in
//! `tools/atoll`, which uses this crate.

pub mod artifact;
pub mod cache;
pub mod client;
pub mod commands;
pub mod compiler;
pub mod device_name;
mod devices;
pub mod drawing;
pub mod engine;
pub mod failure;
pub mod invoker;
pub mod npy;
pub mod output;
pub mod profiler;
pub mod random;
pub mod samples;
pub mod symbols;
pub mod tensors;
