//! Simulation of graphs of functions on a cluster, in the manner of the thesis on KaaS (§4.3): the
//! components have an inbox and an outbox, and take steps of fixed length.
//!
//! [`simulate_graphs`] runs a [`GraphScenario`] with the daemon's own [`Admission`] or a baseline,
//! and counts the outcomes of the requests in a [`GraphReport`]. To check the bills, it computes
//! them a second time from the runs of the nodes.
//!
//! Start reading at [`simulate_graphs`], then `actors.rs`.

mod actors;
mod scenarios;
mod world;

pub use scenarios::{ThesisRow, ThesisTable, pipelines, thesis_row, thesis_table};
pub use world::{GraphPolicy, GraphReport, GraphRequest, GraphScenario, simulate_graphs};

#[cfg(doc)]
use atoll_core::graphs::Admission;
