//! Submissions that wait for a batch.

use crate::event::Submission;
use crate::function::FunctionId;
use crate::request::PendingReply;
use atoll_core::batching::{Action, Batching};
use atoll_core::{ClientId, Nanos, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// Submissions that wait for others, and the decisions about them.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) decisions: Batching,
    /// Decisions to carry out, in order.
    pub(super) actions: VecDeque<Action>,
    /// By the id of the invocation.
    pub(super) waiting: BTreeMap<TaskId, (Submission, PendingReply, Nanos)>,
    /// Requests of an instance gather among themselves: the decisions know it as a function of its
    /// own, by this id.
    pub(super) instances: BTreeMap<(FunctionId, ClientId), FunctionId>,
}

impl Batches {
    pub(super) fn next_wakeup(&self) -> Option<Nanos> {
        self.decisions.next_wakeup()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The ids under which the decisions know a function: its own, and those of its instances.
    pub(super) fn ids_of(&self, function: FunctionId) -> Vec<FunctionId> {
        let instances = self.instances.range((function, ClientId(0))..=(function, ClientId(u32::MAX)));
        std::iter::once(function).chain(instances.map(|(_, id)| *id)).collect()
    }

    /// Whether an invocation waits for a batch, or is in one.
    pub(super) fn knows(&self, task: TaskId) -> bool {
        self.decisions.knows(task)
    }
}
