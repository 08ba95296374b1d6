//! The scheduler as a pure function of (state, event, now): ids, units, limits, queues, policies (design D3).
//!
//! No thread, clock, lock, log or device, and no crate of ours: the daemon, the simulator and the tests drive the same code.

pub mod ids;

pub use ids::*;
