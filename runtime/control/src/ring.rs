//! Rings: requests through shared memory.

use serde::{Deserialize, Serialize};

/// A ring to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingSpec {
    /// Most requests without an answer at one time. Rounded up to a power of two.
    pub slots: u32,
    /// Bytes for the tensors of all requests that have no answer yet, inputs and outputs.
    pub arena_bytes: u64,
    /// How long the daemon spins for the next request before its thread sleeps, in microseconds. The
    /// daemon has an upper limit.
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
    /// The memory: a file that comes with the frame, by index. Its size is sealed.
    pub memory: u16,
}
