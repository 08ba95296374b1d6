//! Tests of the simulation, in one binary because each binary costs a link.

mod cluster;
mod cluster_memory;
mod device;
mod graphs;
mod scaling;
mod shares;
mod world;
