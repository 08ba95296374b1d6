//! Tests of the pure core, in one binary because each binary costs a link.

mod batching;
mod demand;
mod driver;
mod graphs;
mod lanes;
mod layout;
mod memory_mixes;
mod memory_model;
mod memory_simulation;
mod model;
mod packing;
mod padding;
mod placing;
mod recorded;
mod routing;
mod scaling;
mod share_gate;
mod shares;
mod simulation;
mod suspending;
mod tokens;
mod urgency;
mod wakeups;
