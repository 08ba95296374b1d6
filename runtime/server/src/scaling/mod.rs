//! Scaling of models by their load: `[scaling]` in a model's settings.
//!
//! Requests are counted where they arrive and end (`meter`). A loop (`driver`) gives the counts to
//! [`atoll_core::scaling`], which decides, and applies the decisions in the way of `atoll instance`
//! (`instances`). Which device gets a new instance, and which ones move for it, is decided there,
//! too (`placing`). Instances that an operator created count as capacity and are never changed. An
//! instance that is to be removed gets no new requests at first, and goes when its requests have
//! ended.

pub(crate) mod basis;
pub(crate) mod driver;
mod instances;
pub(crate) mod meter;
mod placing;
mod queue;
mod stages;
pub(crate) mod state;
pub(crate) mod wait;
