//! What the dashboard shows: a page, and snapshots of the daemon that feed it.
//!
//! One producer collects a snapshot for all viewers, and only while there are any, or were seconds
//! ago (`hub.rs`). Each
//! viewer gets the part that its tenant may see (`snapshot.rs`), with the recent preemptions from
//! the trace (`events.rs`). The routes are in `http/dashboard.rs`.

mod collect;
mod events;
mod hub;
mod page;
mod snapshot;

pub(crate) use collect::collector;
pub(crate) use hub::{Hub, Seat};
pub(crate) use page::{PageFile, file};
pub(crate) use snapshot::Snapshot;
