//! Rings: requests through shared memory.

use serde::{Deserialize, Serialize};

/// A ring to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingSpec {
    /// Maximum number of requests in flight. Rounded up to a power of two.
    pub slots: u32,
    /// Bytes for the inputs and outputs of all requests in flight.
    pub arena_bytes: u64,
    /// How long the daemon spins for the next request before its thread sleeps, in microseconds.
    /// The daemon caps it at 1000.
    pub spin_us: u32,
}

/// An open ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingReport {
    /// Number of slots.
    pub slots: u32,
    /// Bytes for tensors.
    pub arena_bytes: u64,
    /// How long the daemon spins, in microseconds.
    pub spin_us: u32,
    /// Index of the file in the frame that holds the memory. The size of the file is sealed.
    pub memory: u16,
}
