//! What an instance with a memory limit has, and who waits for it.

use crate::share::InstanceMemory;
use atoll_core::TaskId;
use std::collections::{BTreeMap, VecDeque};

/// The memory of an instance.
#[derive(Debug)]
pub(super) struct MemoryGate {
    pub(super) limit: InstanceMemory,
    /// Bytes of its invocations that have memory or are next to get it.
    pub(super) held: BTreeMap<TaskId, u64>,
    /// Invocations that wait until others have ended, in order, real-time ones first. The memory
    /// decisions count them as ready, the scheduler does not.
    pub(super) waiting: VecDeque<TaskId>,
}

impl MemoryGate {
    fn held_bytes(&self) -> u64 {
        self.held.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Whether an invocation fits beside those that have memory. One alone always does: it was
    /// checked when it arrived, and the limit may be lower since.
    pub(super) fn fits(&self, bytes: u64, constants: u64) -> bool {
        let all = self.held_bytes().saturating_add(bytes).saturating_add(constants);
        self.held.is_empty() || all <= self.limit.bytes
    }
}
