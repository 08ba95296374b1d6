//! The fleet: the devices of one daemon, each with an engine of its own, behind one interface.
//!
//! [`Fleet::start`] starts an engine for each device and divides the CPUs among their threads. A
//! [`FleetHandle`] implements [`Inference`]: it places functions on devices, sends each request to
//! the device that has its function, and reports the statistics of all devices. Invocation ids
//! carry the device in their upper bits, so cancelling needs no map.
//!
//! Not here: scheduling and memory management, which each engine does for its own device, and
//! parsing of the command line. The placement rule is a pure function in
//! [`atoll_core::placement`].
//!
//! # Invariants
//!
//! - A function is on at most one device. Its name is unique in the fleet.
//! - The devices share nothing: a lost or slow device does not affect functions on other
//!   devices.
//! - With one device the fleet takes no lock for a request.
//!
//! Start with `handle.rs`.

mod error;
mod fleet;
mod handle;
mod inference;
mod member;
mod placements;

pub use error::FleetError;
pub use fleet::Fleet;
pub use handle::FleetHandle;
pub use inference::{Inference, Placed};
pub use member::Member;
