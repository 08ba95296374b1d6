//! The dashboard: a page, and the snapshots of the daemon that it shows.
//!
//! One producer collects snapshots for all viewers, while there are viewers and some seconds longer
//! (`hub.rs`). Each viewer gets the part that its tenant may see (`snapshot.rs`), with the recent
//! preemptions from the trace (`events.rs`). The routes are in `http/dashboard.rs`.

mod collect;
mod events;
mod hub;
mod page;
mod snapshot;

pub(crate) use collect::collector;
pub(crate) use hub::{Hub, Seat};
pub(crate) use page::{PageFile, file};
pub(crate) use snapshot::Snapshot;
