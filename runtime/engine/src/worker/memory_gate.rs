//! The memory of an instance with a limit, and the invocations that wait for it.

use crate::share::InstanceMemory;
use atoll_core::TaskId;
use std::collections::{BTreeMap, VecDeque};

/// The memory of an instance.
#[derive(Debug)]
pub(super) struct MemoryGate {
    pub(super) limit: InstanceMemory,
    /// Bytes of each invocation that has memory or has it reserved.
    pub(super) held: BTreeMap<TaskId, u64>,
    /// Invocations that wait until others have ended, in order, real-time ones first. They are
    /// ready for the memory decisions, but not for the scheduler.
    pub(super) waiting: VecDeque<TaskId>,
}

impl MemoryGate {
    fn held_bytes(&self) -> u64 {
        self.held.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Whether an invocation fits beside those that have memory. The only invocation always fits:
    /// it was checked when it arrived, even if the limit has been lowered since.
    pub(super) fn fits(&self, bytes: u64, constants: u64) -> bool {
        let all = self.held_bytes().saturating_add(bytes).saturating_add(constants);
        self.held.is_empty() || all <= self.limit.bytes
    }
}
