//! The fleet: the devices of one daemon, each with an engine of its own, behind one interface.
//!
//! [`Fleet::start`] starts an engine for each device and divides the CPUs among their threads. A
//! [`FleetHandle`] implements [`Inference`]: it loads functions onto devices, sends each request to
//! a device that has its function, and reports the statistics of all devices. With several devices,
//! requests go through one queue for all of them, and a policy without I/O
//! ([`atoll_core::placement`]) chooses a device when one is free. Invocation ids carry the device
//! in their upper bits, so cancelling needs no map.
//!
//! Not here: scheduling and memory management, which each engine does for its own device, and
//! parsing of the command line.
//!
//! # Invariants
//!
//! - The name of a function is unique in the fleet.
//! - The devices share nothing: a lost or slow device does not affect functions on other
//!   devices. Requests on a lost device move to another device that has their function, if there
//!   is one.
//! - With one device the fleet takes no lock for a request.
//!
//! Start with `handle.rs`.

mod decisions;
mod dispatcher;
mod error;
mod fleet;
mod handle;
mod inference;
mod member;
mod placements;
mod placing;
mod shares;

pub use decisions::DecisionCounts;
pub use dispatcher::{DeviceState, SLOTS, may_retry};
pub use error::FleetError;
pub use fleet::Fleet;
pub use handle::FleetHandle;
pub use inference::{DeviceTraits, FleetStatus, Inference, Placed, device_named};
pub use member::{Member, Reopened};
pub use placing::Placing;
pub use shares::{ShareRefusal, ShareRoom};
