//! Memory of sessions: cleared when a session begins, bound to each of its steps, freed when it
//! ends or is suspended.

use super::Worker;
use super::holdings::{Holdings, SessionMemory};
use crate::accounts::MemoryKind;
use crate::allowance::Part;
use crate::clock;
use crate::error::InvokeError;
use crate::instance::Instance;
use crate::session::{Session, SessionId};
use crate::suspension::SuspendError;
use atoll_core::memory::{Event as MemoryEvent, Place};
use atoll_core::{DeviceOffset, TaskId};
use atoll_device::DeviceError;
use std::sync::Arc;

/// Memory of this size or more is cleared by returning its pages to the system, which is faster
/// than writing zeros.
const CLEARED_BY_WRITING_MAX: u64 = 1 << 20;

impl Worker {
    /// The address at which kernels see the memory of a session that has begun, if the device knows
    /// it.
    pub(super) fn session_address(&self, session: SessionId) -> Option<u64> {
        // It stays the same while the session is suspended.
        let known = self.shared.sessions.find(session).and_then(|session| session.address());
        let memory = self.holdings.sessions.get(&session);
        known.or_else(|| self.device.kernel_address(memory?.at))
    }

    fn session_of(&mut self, task: TaskId) -> Option<Arc<Session>> {
        self.invocation(task).submission.session.clone()
    }

    /// Binds a session's memory to a step, and clears it for the first step. Returns an error for
    /// the step if the memory was lost, or if its tenant has no room for it in one piece.
    pub(super) fn enter_session(
        &mut self,
        task: TaskId,
        instances: &mut [Instance],
    ) -> Result<Option<InvokeError>, DeviceError> {
        let (Some(session), Some(instance)) = (self.session_of(task), instances.first_mut()) else { return Ok(None) };
        let Some(place) = self.memory.session_place(session.id) else { return Ok(None) };
        let tenant = &session.function.key.tenant;
        let at = DeviceOffset(self.device.domain(tenant.as_str())?.0 + place.at.0);
        let known = self.holdings.sessions.get_mut(&session.id);
        let contents = self.holdings.suspended.contents.get_mut(&session.id);
        let is_new = match (&known, contents) {
            (Some(memory), _) if memory.at == at => false,
            (Some(_), None) => return Ok(Some(InvokeError::SessionLost)),
            // Its contents are written to the new memory from the beginning.
            (_, Some(contents)) => {
                contents.written = 0;
                true
            }
            (None, None) => true,
        };
        if let Some(memory) = known {
            memory.at = at;
        }
        if is_new {
            if let Err(error) = self.allow_session(&session, place) {
                return Ok(Some(InvokeError::Unavailable(error.to_string())));
            }
            match place.bytes < CLEARED_BY_WRITING_MAX {
                true => self.device.fill(at, 0, place.bytes)?,
                false => self.device.give_back(at, place.bytes)?,
            }
        }
        instance.set_state(at);
        Ok(None)
    }

    /// Withdraws the permission to touch the memory of a session whose first step could not be
    /// prepared. The memory decisions may free that memory without an action.
    pub(super) fn leave_session(&mut self, task: TaskId) {
        let Some(session) = self.session_of(task) else { return };
        if !self.holdings.sessions.contains_key(&session.id) {
            self.withdraw(Part::Session(session.id));
            // The address of a session that did not come back was reserved until it was placed.
            self.reserve_address_of(session.id);
        }
    }

    /// Records that a step was prepared: its session has begun.
    pub(super) fn begin_session(&mut self, task: TaskId) {
        let Some(session) = self.session_of(task) else { return };
        let Some(Place { bytes, .. }) = self.memory.session_place(session.id) else { return };
        if !self.holdings.sessions.contains_key(&session.id) {
            let at = self.invocation(task).instances[0].state();
            let holder = (self.functions[&session.function.id].own_account(), MemoryKind::Invocations);
            if let Some(address) = self.device.kernel_address(at).filter(|_| session.memory_bytes.is_some()) {
                session.set_address(address);
            }
            self.holdings.sessions.insert(session.id, SessionMemory { at, bytes, holder });
            self.accounts.pass(bytes, None, Some(holder), clock::now());
        }
    }

    /// Whether a step lost its session's memory.
    pub(super) fn has_lost_session(&mut self, session: Option<&Arc<Session>>, lost_executor: bool) -> bool {
        // What is in host memory is not lost.
        let Holdings { sessions, suspended, .. } = &self.holdings;
        let is_lost = |session: &Arc<Session>| {
            sessions.contains_key(&session.id) && !suspended.contents.contains_key(&session.id)
        };
        lost_executor && session.is_some_and(is_lost)
    }

    /// Closes a session: further steps are refused, and its memory is freed once its last step has
    /// ended.
    pub(super) fn close_session(&mut self, session: SessionId) {
        self.shared.sessions.remove(session);
        self.drop_suspended(session);
        self.notify_memory(MemoryEvent::SessionClosed { session });
        self.notify_memory(MemoryEvent::Resume);
    }

    /// Handles a session that was idle for its idle time.
    pub(super) fn session_expired(&mut self, session: SessionId) {
        self.shared.sessions.remove(session);
        tracing::info!(session = session.0, "session expired");
    }

    pub(super) fn free_state(&mut self, session: SessionId, place: Place) {
        self.holdings.suspended.end_leaving(session);
        self.holdings.suspended.answer(session, &Err(SuspendError::NoSession));
        self.release_memory(session, place);
    }

    /// Clears the memory of a session that ended or was suspended.
    pub(super) fn release_memory(&mut self, session: SessionId, place: Place) {
        // A session that never began has no data.
        if let Some(SessionMemory { at, bytes, holder }) = self.holdings.sessions.remove(&session) {
            self.accounts.pass(bytes, Some(holder), None, clock::now());
            if self.lost.is_none() {
                let answer = self.device.give_back(at, place.bytes);
                if self.check(answer).is_err() {
                    self.note_memory(MemoryEvent::ClearFailed { place });
                }
            }
        }
        self.withdraw(Part::Session(session));
    }
}
