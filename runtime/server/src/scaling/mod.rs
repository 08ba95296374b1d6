//! Autoscaling of models: the section `[scaling]` in a model's settings.
//!
//! Requests are counted when they arrive and end (`meter`). A loop (`driver`) passes the counts to
//! [`atoll_core::scaling`], which decides. The loop then creates, resizes and removes instances as
//! `atoll instance` does (`instances`). Instances that an operator created count as capacity and
//! are never changed. An instance is drained before it is removed: it gets no new requests, and is
//! removed when its own have ended.

pub(crate) mod basis;
pub(crate) mod driver;
mod instances;
pub(crate) mod meter;
mod queue;
pub(crate) mod state;
pub(crate) mod wait;
