//! What happened, in pieces, for people who watch a daemon.

use crate::blob::Blob;
use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// A piece of what happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePiece {
    /// The records that the peer may see, 64 bytes each in the order in which they were written:
    /// eight 64-bit words, little-endian.
    pub records: Blob,
    /// Where to read on.
    pub next: u64,
    /// Whether there are more already.
    pub more: bool,
    /// Records of anybody that were overwritten before this was asked for.
    pub lost: u64,
    /// Blocks that compute units ran for anybody and that were never recorded, in chunks, since the
    /// daemon started.
    pub chunks_lost: u64,
    /// Functions that the records name, those left out that the connection has heard of.
    pub functions: Vec<TraceFunction>,
    /// Whether each tenant has compute units and device queues of its own.
    pub separate: bool,
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// The names of all devices of the daemon, in the order of their numbers.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// A function that records name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFunction {
    /// What they call it.
    pub number: u64,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its name.
    pub name: String,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// The nodes of its graph; none where they would not have fitted.
    pub nodes: Vec<String>,
}
