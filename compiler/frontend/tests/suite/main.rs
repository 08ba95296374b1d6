//! Tests of the frontend, in one binary because each binary costs a link.

mod batch;
mod common;
mod conformance;
mod control_flow;
mod graphs;
mod import;
mod lists;
mod machines;
mod memory_plan;
mod packed;
mod run_time_sizes;
mod states;
mod symbolic_sizes;
mod transform;
