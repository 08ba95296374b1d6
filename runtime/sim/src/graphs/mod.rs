//! Simulation of graphs of functions on a cluster, in the manner of the thesis on KaaS (§4.3): the
//! components have an inbox and an outbox, and take steps of fixed length.
//!
//! [`simulate_graphs`] drives the daemon's own [`Admission`], or a baseline, over a
//! [`GraphScenario`], and counts in a [`GraphReport`] what became of the requests. Bills are
//! computed a second time from what the nodes ran.
//!
//! Start reading at [`simulate_graphs`], then `actors.rs`.

mod actors;
mod scenarios;
mod world;

pub use scenarios::{ThesisRow, ThesisTable, pipelines, thesis_row, thesis_table};
pub use world::{GraphPolicy, GraphReport, GraphRequest, GraphScenario, simulate_graphs};

#[cfg(doc)]
use atoll_core::graphs::Admission;
