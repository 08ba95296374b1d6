//! Placement: chooses the device that runs each request, and which functions each device keeps.
//!
//! A [`Pool`] holds all devices of a daemon or a cluster and one queue for all of them (late
//! binding): a request is bound to a device only when the device has a free slot. Real-time
//! requests preempt best-effort work, so they do not wait for slots: the pool dispatches them at
//! once to the device where they finish first.
//!
//! Like the rest of this crate, the pool does no I/O: the caller passes in events and the time, and
//! executes the returned actions. The daemon's fleet and the cluster simulation drive the same
//! code. Start reading at [`PoolEvent`] and [`PoolAction`], then [`Pool`].
//!
//! # Invariants
//!
//! They hold for every policy, and are asserted in release builds too.
//!
//! - Every request that arrived ends exactly once: it finishes, is rejected, or is cancelled.
//! - A request is in flight on at most one device. When a device is lost, its requests are taken
//!   back before any of them is dispatched again.
//! - A device never has more best-effort requests in flight than slots.
//! - A device that is draining or lost gets no requests and no loads.
//! - A function runs only on suitable devices; a pinned function runs only on its device.
//! - A device that refuses a function gets no more of its requests for a while, if another device
//!   can run them.

mod chain;
mod classes;
mod config;
mod decide;
mod emptiest;
mod estimate;
mod event;
mod grounds;
mod hedge;
mod id_set;
mod id_table;
mod policies;
mod pool;
mod queue;
mod queueing;
mod requests;
mod state;
mod suspension;
#[cfg(test)]
mod tests;
mod work;

pub use config::{Ageing, BucketWeights, PoolConfig, PoolOptions, Steal, StealMeasure, Visibility};
pub use emptiest::{Candidate, emptiest};
pub use event::{
    DeviceKind, DeviceSpec, Expected, FunctionId, FunctionSpec, GroupId, PoolAction, PoolEvent, RejectReason,
    RequestEnd, RequestId, RequestSpec, Suits,
};
pub use grounds::{Grounds, Why};
pub use hedge::{HedgeConfig, Hedges};
pub use policies::{PLACEMENT_DEFAULT, PLACEMENTS, PlacementEntry, placement_by_name};
pub use pool::Pool;
