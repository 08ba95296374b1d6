//! Simulation in virtual time (design D3): a device made of parameters, clients made of workload
//! files, and between them the scheduler that the daemon runs.
//!
//! [`SimDevice`] executes launches as blocks on compute units, with the times of a profile and
//! named [`Costs`] for everything else. [`simulate`] lets the clients of a [`Workload`] call models
//! on it. Nothing reads a clock: the same seed gives the same run, on any machine.

mod arrivals;
mod device;
mod disb;
mod error;
mod faults;
mod limits;
mod model;
mod occupancy;
mod parameters;
mod reef;
mod report;
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
pub use world::{LaneSetup, Simulation, simulate, watch};
