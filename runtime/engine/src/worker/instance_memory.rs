//! Memory limits of instances. The limit covers the memory of the instance's invocations and its
//! part of its function's constants. An invocation that alone exceeds the limit is rejected. An
//! invocation that does not fit beside the others of its instance waits until one of them has
//! ended. While it waits, it is not ready for the scheduler: a waiting real-time invocation must
//! not stop the best-effort invocations whose memory it waits for.

use super::Worker;
use super::memory_gate::MemoryGate;
use crate::error::InvokeError;
use crate::event::Submission;
use crate::share::{InstanceMemory, ShareClient};
use atoll_core::{ClientId, Event, TaskId};
use std::collections::{BTreeMap, VecDeque};

impl Worker {
    /// Sets, changes or removes the memory limit of an instance.
    pub(super) fn limit_memory(&mut self, client: &ShareClient, limit: Option<InstanceMemory>) {
        match limit {
            Some(limit) => {
                let id = self.lanes.client(client);
                let new = MemoryGate { limit, held: BTreeMap::new(), waiting: VecDeque::new() };
                self.lanes.memory.entry(id).or_insert(new).limit = limit;
                self.serve_memory(id);
            }
            None => {
                let Some(id) = self.lanes.known_client(client) else { return };
                let waiting = self.lanes.memory.remove(&id).map(|gate| gate.waiting).unwrap_or_default();
                waiting.into_iter().for_each(|task| self.become_ready(task));
                self.note_instance(client, id);
            }
        }
    }

    /// Rejects an invocation that alone exceeds the memory limit of its instance.
    pub(super) fn check_instance_memory(&self, submission: &Submission) -> Result<(), InvokeError> {
        let Some(instance) = submission.instance.as_ref().filter(|_| !self.lanes.memory.is_empty()) else {
            return Ok(());
        };
        let gate = self.lanes.known_client(&submission.client()).and_then(|id| self.lanes.memory.get(&id));
        let Some(gate) = gate else { return Ok(()) };
        let constants = self.constants_part(submission, gate.limit);
        let wanted = bytes_of(submission).saturating_add(constants);
        if wanted <= gate.limit.bytes {
            return Ok(());
        }
        let (instance, limit) = (instance.clone(), gate.limit.bytes);
        Err(InvokeError::OverInstanceMemory { instance, wanted, constants, limit })
    }

    /// Whether an invocation may get memory now. If not, it is queued, and the scheduler is told
    /// that it is not ready, so that it does not stop the invocations that have memory.
    pub(super) fn may_take_memory(&mut self, task: TaskId) -> bool {
        if self.lanes.memory.is_empty() {
            return true;
        }
        let Some(id) = self.gated_client(task) else { return true };
        let class = self.invocations[&task].submission.class;
        let (bytes, constants) = self.wanted_of(task, id);
        let waits_before = |other: &TaskId| self.invocations.get(other).is_some_and(|it| it.submission.class <= class);
        let gate = self.lanes.memory.get_mut(&id).expect("present: it is a gated client");
        if gate.held.contains_key(&task) {
            return true;
        }
        // At the end of the queue, but real-time invocations before best-effort ones.
        let place = gate.waiting.iter().rposition(waits_before).map_or(0, |before| before + 1);
        if place == 0 && gate.fits(bytes, constants) {
            gate.held.insert(task, bytes);
            return true;
        }
        gate.waiting.insert(place, task);
        self.note_ready(task, None);
        self.notify_scheduler(Event::TaskUnready { task });
        false
    }

    /// Whether an invocation waits for memory of its instance. The scheduler has then been told
    /// that it is not ready.
    pub(super) fn waits_for_memory(&self, task: TaskId) -> bool {
        self.lanes.memory.values().any(|gate| gate.waiting.contains(&task))
    }

    /// Returns the memory of an invocation that ended or is no longer ready, to others of its
    /// instance.
    pub(super) fn return_memory(&mut self, task: TaskId) {
        let has_it = |gate: &mut MemoryGate| {
            let waited = gate.waiting.len();
            gate.waiting.retain(|waiting| *waiting != task);
            gate.held.remove(&task).is_some() || gate.waiting.len() < waited
        };
        let changed = self.lanes.memory.iter_mut().find_map(|(id, gate)| has_it(gate).then_some(*id));
        if let Some(id) = changed {
            self.serve_memory(id);
        }
    }

    /// Gives memory to waiting invocations of an instance, in order, and reports them as ready. The
    /// memory is reserved for them until the scheduler prepares them.
    fn serve_memory(&mut self, id: ClientId) {
        while let Some(&task) = self.lanes.memory.get(&id).and_then(|gate| gate.waiting.front()) {
            if !self.invocations.contains_key(&task) {
                // The invocation is ending.
                self.lanes.memory.get_mut(&id).map(|gate| gate.waiting.pop_front());
                continue;
            }
            let (bytes, constants) = self.wanted_of(task, id);
            let gate = self.lanes.memory.get_mut(&id).expect("present: it was read");
            if !gate.fits(bytes, constants) {
                return;
            }
            gate.waiting.pop_front();
            gate.held.insert(task, bytes);
            self.become_ready(task);
        }
    }

    /// The bytes of an invocation, and the bytes of constants that count for its instance.
    fn wanted_of(&self, task: TaskId, id: ClientId) -> (u64, u64) {
        let submission = &self.invocations[&task].submission;
        (bytes_of(submission), self.constants_part(submission, self.lanes.memory[&id].limit))
    }

    /// The client of an invocation, if it is an instance with a memory limit.
    fn gated_client(&self, task: TaskId) -> Option<ClientId> {
        let submission = &self.invocations.get(&task)?.submission;
        submission.instance.as_ref()?;
        self.lanes.known_client(&submission.client()).filter(|id| self.lanes.memory.contains_key(id))
    }

    /// Bytes of the functions' constants that count for an instance, rounded up.
    fn constants_part(&self, submission: &Submission, limit: InstanceMemory) -> u64 {
        let set = |id| self.functions.get(id).map(|loaded| loaded.set);
        let sets = submission.chain.stages.iter().filter_map(|stage| set(&stage.function.id));
        let all: u64 = sets.map(|set| self.memory.set_bytes(set)).sum();
        all.div_ceil(u64::from(limit.sharers.max(1)))
    }
}

/// Bytes of the memory of a submission, without constants.
fn bytes_of(submission: &Submission) -> u64 {
    submission.chain.stages.iter().map(|stage| stage.binding.layout.bytes).sum()
}
