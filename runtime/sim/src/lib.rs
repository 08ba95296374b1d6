//! Discrete-event simulation of the scheduler. The daemon's own [`atoll_core::DeviceScheduler`]
//! runs between clients described by workload files and a device described by parameters.
//!
//! - [`SimDevice`] executes launches as blocks on compute units. Block times come from a kernel
//!   profile, all other times from named [`Costs`].
//! - [`simulate`] runs the clients of a [`Workload`] against the scheduler and returns a
//!   [`Report`]; [`simulate_shares`] also gives clients shares of the device; [`watch`] also
//!   returns the use of each compute unit over time.
//! - [`cluster`] simulates a pool of many devices, request by request or launch by launch.
//! - [`scaling`] simulates functions whose instances follow their load on a cluster.
//! - [`Model`] reads kernel profiles, among them REEF's published ones.
//! - [`graphs`] simulates graphs of functions on a cluster.
//!
//! Not here: a simulation of the engine's threads, or of what kernels compute. Memory is simulated in
//! clusters only. Policies are in [`atoll_core`].
//!
//! # Invariants
//!
//! - Time is virtual: no code reads a clock. The same set-up and seed give the same run on any
//!   machine.
//! - Every call is counted exactly once, as served or as dropped.
//!
//! Start with `world.rs` (the main loop), then `device.rs`.

mod arrivals;
pub mod cluster;
mod device;
mod disb;
mod error;
mod faults;
pub mod graphs;
mod limits;
mod model;
mod node;
mod occupancy;
mod parameters;
mod reef;
mod report;
pub mod scaling;
mod world;

pub use arrivals::Arrivals;
pub use device::{Ended, SimDevice, SimLaunch, SimPad};
pub use disb::{Client, DISB, Load, Workload};
pub use error::SimError;
pub use faults::{FAULTS, FaultCounts, FaultEntry, Faults};
pub use model::{Kernel, Model};
pub use occupancy::Occupied;
pub use parameters::{COSTS, CostEntry, Costs, DEVICES, DeviceParameters, device_by_name};
pub use report::{ClientReport, Distribution, PreemptionReport, Report};
pub use world::{LaneSetup, Received, ShareSetup, Simulation, simulate, simulate_shares, watch};
