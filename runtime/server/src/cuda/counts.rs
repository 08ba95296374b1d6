//! Counts of all sessions, for metrics.

use std::sync::atomic::AtomicU64;

/// Counts of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Sessions that are open.
    pub(crate) open: AtomicU64,
    /// Sessions that began; also the number of the next one.
    pub(crate) begun: AtomicU64,
    /// Bytes of the memory of open sessions.
    pub(crate) memory_bytes: AtomicU64,
    /// Tasks that sessions submitted.
    pub(crate) flushes: AtomicU64,
    /// Launches in them.
    pub(crate) launches: AtomicU64,
}
