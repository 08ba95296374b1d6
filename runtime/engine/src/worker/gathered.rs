//! Submissions that wait for a batch.

use crate::event::Submission;
use crate::request::PendingReply;
use atoll_core::batching::{Action, Batching};
use atoll_core::{Nanos, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// Submissions that wait for others, and the decisions about them.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) decisions: Batching,
    /// Decisions to carry out, in order.
    pub(super) actions: VecDeque<Action>,
    /// By the id of the invocation.
    pub(super) waiting: BTreeMap<TaskId, (Submission, PendingReply, Nanos)>,
}

impl Batches {
    pub(super) fn next_wakeup(&self) -> Option<Nanos> {
        self.decisions.next_wakeup()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an invocation waits for a batch, or is in one.
    pub(super) fn knows(&self, task: TaskId) -> bool {
        self.decisions.knows(task)
    }
}
