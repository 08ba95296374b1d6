//! Objects and deployed functions: what a daemon keeps beyond an invocation, and beyond its own
//! life.
//!
//! An object is an immutable string of bytes, named by its SHA-256. It lies in a file of that name,
//! and, as long as there is room, in a sealed memory file as well, which can be handed to a
//! client without a copy. Who may have what stands in an index. Device memory is the engine's
//! matter: an object that is bound to an invocation is written into its input buffer.
//!
//! Not here: sockets, functions as something that runs, and names that are not digests.
//!
//! # Invariants
//!
//! - An object that was promised survives whatever happens to the daemon: its file is on the disk
//!   before its entry is in the index, and the entry before the answer.
//! - A file that does not hold what its name says is never given to anybody.
//! - Who has no right to an object learns nothing of it, not even that it is there.
//! - Bytes that are being read stay until they have been read.
//! - What cannot be written for want of room is refused, and what was there stays.

mod deployment;
mod error;
mod files;
mod index;
pub mod limits;
mod object;
mod store;

pub use deployment::{Deployment, DeploymentKey};
pub use error::StoreError;
pub use object::{Form, Limit, ObjectInfo, Quota, Usage};
pub use store::{HeldBundle, Lease, Store, StoreConfig, StoreStatistics};
