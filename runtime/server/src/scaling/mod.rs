//! Autoscaling of models: the section `[scaling]` in a model's settings.
//!
//! Requests are counted when they arrive and end (`meter`). A loop (`driver`) passes the counts to
//! [`atoll_core::scaling`], which decides. The loop then creates, resizes and removes instances as
//! `atoll instance` does (`instances`). [`atoll_core::scaling`] also chooses the device of a new
//! instance, and which instances move for it (`placing`). Instances that an operator created count
//! as capacity and are never changed. An instance is drained before it is removed: it gets no new
//! requests, and is removed when its own have ended.

pub(crate) mod basis;
pub(crate) mod driver;
mod instances;
pub(crate) mod meter;
mod placing;
mod queue;
mod stages;
pub(crate) mod state;
pub(crate) mod wait;
