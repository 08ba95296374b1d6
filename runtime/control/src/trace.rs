//! Recorded events, sent in batches.

use crate::blob::Blob;
use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// A batch of recorded events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePiece {
    /// The records that the peer may see, in the order in which they were written. Each has 64
    /// bytes: eight 64-bit words, little-endian.
    pub records: Blob,
    /// Position of the next batch.
    pub next: u64,
    /// Whether more records are already available.
    pub more: bool,
    /// Records (of all tenants) that were overwritten before they were read.
    pub lost: u64,
    /// Chunks of blocks (of all tenants) that compute units ran without recording them, since the
    /// daemon started.
    pub chunks_lost: u64,
    /// Functions that the records refer to, except those already sent on this connection.
    pub functions: Vec<TraceFunction>,
    /// Whether each tenant has its own compute units and device queues.
    pub separate: bool,
    /// Name of the device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// Names of all devices of the daemon, indexed by device number. If the daemon has one queue
    /// for several devices, the last name is `pool`, with the records of placements.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// A function that records refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFunction {
    /// Its number in the records.
    pub number: u64,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its name.
    pub name: String,
    /// The class of invocations that state no class.
    pub class: Class,
    /// Names of the nodes of its graph; empty if they did not fit.
    pub nodes: Vec<String>,
}
