//! Memory of sessions: cleared when a session begins, shown to each of its steps, given back when
//! it ends.

use super::Worker;
use super::holdings::SessionMemory;
use crate::accounts::MemoryKind;
use crate::clock;
use crate::error::InvokeError;
use crate::instance::Instance;
use crate::session::{Session, SessionId};
use atoll_core::memory::{Event as MemoryEvent, Place};
use atoll_core::{DeviceOffset, TaskId};
use atoll_device::DeviceError;
use std::sync::Arc;

impl Worker {
    fn session_of(&mut self, task: TaskId) -> Option<Arc<Session>> {
        self.invocation(task).submission.session.clone()
    }

    /// Shows a step its session's memory, which is cleared for the first one. Returns why there is
    /// none any more.
    pub(super) fn enter_session(
        &mut self,
        task: TaskId,
        instances: &mut [Instance],
    ) -> Result<Option<InvokeError>, DeviceError> {
        let (Some(session), Some(instance)) = (self.session_of(task), instances.first_mut()) else { return Ok(None) };
        let Some(Place { at, bytes }) = self.memory.session_place(session.id) else { return Ok(None) };
        let at = DeviceOffset(self.device.domain(session.function.key.tenant.as_str())?.0 + at.0);
        match self.holdings.sessions.get(&session.id) {
            Some(memory) if memory.at != at => return Ok(Some(InvokeError::SessionLost)),
            Some(_) => {}
            None => self.device.fill(at, 0, bytes)?,
        }
        instance.set_state(at);
        Ok(None)
    }

    /// A step was prepared: its session has begun, if it had not.
    pub(super) fn begin_session(&mut self, task: TaskId) {
        let Some(session) = self.session_of(task) else { return };
        let Some(Place { bytes, .. }) = self.memory.session_place(session.id) else { return };
        if !self.holdings.sessions.contains_key(&session.id) {
            let at = self.invocation(task).instances[0].state();
            let holder = (self.functions[&session.function.id].own_account(), MemoryKind::Invocations);
            self.holdings.sessions.insert(session.id, SessionMemory { at, bytes, holder });
            self.accounts.pass(bytes, None, Some(holder), clock::now());
        }
    }

    /// Whether a step lost its session's memory, by what happened to it.
    pub(super) fn has_lost_session(&mut self, session: Option<&Arc<Session>>, lost_executor: bool) -> bool {
        lost_executor && session.is_some_and(|session| self.holdings.sessions.contains_key(&session.id))
    }

    /// Ends a session: its steps are refused from now on, and its memory is free once the last one
    /// has left.
    pub(super) fn close_session(&mut self, session: SessionId) {
        self.shared.sessions.remove(session);
        self.tell_memory(MemoryEvent::SessionClosed { session });
        self.tell_memory(MemoryEvent::Resume);
    }

    /// A session was not used for its idle time.
    pub(super) fn session_expired(&mut self, session: SessionId) {
        self.shared.sessions.remove(session);
        tracing::info!(session = session.0, "session expired");
    }

    pub(super) fn give_state_back(&mut self, session: SessionId, place: Place) {
        // One that never began has written nothing.
        let Some(SessionMemory { at, bytes, holder }) = self.holdings.sessions.remove(&session) else { return };
        self.accounts.pass(bytes, Some(holder), None, clock::now());
        if self.lost.is_none() {
            let answer = self.device.give_back(at, place.bytes);
            if self.check(answer).is_err() {
                self.note_memory(MemoryEvent::ClearFailed { place });
            }
        }
    }
}
