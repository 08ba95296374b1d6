//! The store: objects and deployed functions that persist across invocations and restarts of the
//! daemon.
//!
//! An object is an immutable byte string, named by its SHA-256. It is stored in a file of that name
//! and, if there is room, also in a sealed memory file, which can be passed to a client without a
//! copy. An index records which tenant may use which object. Device memory belongs to the engine:
//! binding an object to an invocation copies it into the input buffer.
//!
//! The store also keeps the records of graphs, instances and leases, without interpreting them.
//!
//! Not here: sockets, running functions, and names other than digests.
//!
//! Start reading in `store/mod.rs`.
//!
//! # Invariants
//!
//! - A stored object is durable: its file is on disk before its entry is in the index, and the
//!   entry is written before the store reports success.
//! - A file whose content does not match its name is never returned.
//! - A tenant without a right to an object learns nothing about the object, not even whether it
//!   exists.
//! - Bytes that are being read stay valid until the read ends.
//! - If the disk is full, writes are refused and existing contents stay.

mod deployment;
mod error;
mod files;
mod index;
mod lease;
pub mod limits;
mod object;
mod store;

pub use deployment::{Deployment, DeploymentKey};
pub use error::StoreError;
pub use lease::{LeaseChange, LeaseRecords};
pub use object::{Form, Limit, ObjectInfo, Quota, Usage};
pub use store::{HeldBundle, Lease, Store, StoreConfig, StoreStatistics};
