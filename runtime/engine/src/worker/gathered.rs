//! Submissions that wait for a batch.

use crate::event::Submission;
use crate::function::FunctionId;
use crate::request::PendingReply;
use atoll_core::batching::{Action, Batching};
use atoll_core::{ClientId, Nanos, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// Submissions that wait for a batch, and the batching decisions.
#[derive(Default)]
pub(super) struct Batches {
    pub(super) decisions: Batching,
    /// Decisions to carry out, in order.
    pub(super) actions: VecDeque<Action>,
    /// Waiting submissions by id, each with its reply and the time since which it waits.
    pub(super) waiting: BTreeMap<TaskId, (Submission, PendingReply, Nanos)>,
    /// Requests of an instance are batched only with each other. The batching decisions treat the
    /// instance as a separate function, which has this id.
    pub(super) instances: BTreeMap<(FunctionId, ClientId), FunctionId>,
}

impl Batches {
    pub(super) fn next_wakeup(&self) -> Option<Nanos> {
        self.decisions.next_wakeup()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The ids that the batching decisions use for a function: its own, and those of its instances.
    pub(super) fn ids_of(&self, function: FunctionId) -> Vec<FunctionId> {
        let instances = self.instances.range((function, ClientId(0))..=(function, ClientId(u32::MAX)));
        std::iter::once(function).chain(instances.map(|(_, id)| *id)).collect()
    }

    /// The ids that the batching decisions use for the instances of a client.
    pub(super) fn ids_of_client(&self, client: ClientId) -> Vec<FunctionId> {
        self.instances.iter().filter(|((_, of), _)| *of == client).map(|(_, id)| *id).collect()
    }

    /// Whether an invocation waits for a batch, or is in one.
    pub(super) fn knows(&self, task: TaskId) -> bool {
        self.decisions.knows(task)
    }
}
