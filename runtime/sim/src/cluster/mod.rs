//! Simulation of a pool of devices. The daemon's own [`Pool`](atoll_core::placement::Pool) places
//! the requests. A device has slots, and memory with the daemon's residency. A run has 1 to 10,000
//! devices.
//!
//! There are two models of a device ([`NodeModel`]). A plain device runs requests one after the
//! other, each for exactly its service time, and of its memory decisions only residency is the
//! daemon's. A full device consists of the daemon's launch scheduler, its memory decisions
//! ([`Memory`](atoll_core::memory::Memory)) and a [`SimDevice`](crate::SimDevice). A request is
//! admitted, waits for its constants and for memory of its own, and is a sequence of launches with
//! latencies. The scheduling policy can preempt it, and it shares the device with other requests.
//!
//! - [`simulate_cluster`] runs a [`Cluster`] and returns a [`ClusterReport`].
//! - [`arrivals`] generates arrivals: Poisson, bursts, MMPP, recorded times, and functions in the
//!   shape of Azure's published workload.
//! - [`thesis`] has the workloads of the KaaS scheduling thesis (chapter 6).
//! - [`FullLoad`] keeps a pool of many devices busy, to measure its decisions.
//!
//! Time is virtual and every random choice has a seed, as in the rest of the crate.

pub mod arrivals;
mod device;
mod full;
mod full_load;
mod memory;
mod plain;
mod report;
mod setup;
pub mod thesis;
mod world;

pub use full_load::{FullLoad, FullLoadSetup, Part};
pub use report::{ClusterReport, FunctionReport, LaunchReport, MemoryReport, Scheduled, Waits};
pub use setup::{
    Arrival, Cluster, ClusterDevice, ClusterFault, ClusterFunction, FaultKind, MemorySetup, NodeModel, NodeSetup,
};
pub use world::simulate_cluster;
