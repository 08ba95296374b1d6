//! Autoscaling of models: the section `[scaling]` in a model's settings.
//!
//! Requests are counted when they arrive and end (`meter`). A loop (`driver`) passes the counts to
//! [`atoll_core::scaling`], which decides. The loop then creates, resizes and removes instances as
//! `atoll instance` does (`instances`). [`atoll_core::scaling`] also chooses the device of a new
//! instance, and which instances move for it (`placing`). Instances that an operator created count
//! as capacity and are never changed. An instance is drained before it is removed: it gets no new
//! requests, and is removed when its own have ended.
//!
//! Instances of leases are scaled by the engine that holds the leases, which gets the stored profile
//! of a model from here (`stored`).

pub(crate) mod basis;
pub(crate) mod driver;
mod instances;
pub(crate) mod meter;
mod placing;
mod queue;
mod stages;
pub(crate) mod state;
mod stored;
pub(crate) mod wait;

pub(crate) use stored::StoredProfile;
