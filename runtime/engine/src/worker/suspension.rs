//! Suspends sessions: copies their memory to host memory and back, piece by piece, so that other
//! events wait for 50 µs at most.

use super::Worker;
use super::suspended::{Contents, Leaving};
use crate::clock;
use crate::error::InvokeError;
use crate::event::SuspensionCommand;
use crate::function::FunctionId;
use crate::session::{Session, SessionId};
use crate::suspension::{MemorySession, SessionPlace, SuspendError, SuspendedSession, SuspensionStatistics};
use atoll_core::memory::{Event as MemoryEvent, Place, SessionState};
use atoll_core::{DeviceOffset, Event as TaskEvent, TaskId};
use atoll_device::{DeviceError, priority};
use std::sync::Arc;

impl Worker {
    pub(super) fn handle_suspension(&mut self, command: SuspensionCommand) {
        // A flush of the session may still be in the other channel.
        self.take_urgent();
        match command {
            SuspensionCommand::Suspend { session, answer } => {
                let is_known = self.shared.sessions.find(session).is_some_and(|own| own.memory_bytes.is_some());
                if !is_known || !self.holdings.sessions.contains_key(&session) {
                    let answered = if is_known { Ok(()) } else { Err(SuspendError::NoSession) };
                    return drop(answer.send(answered));
                }
                if let Some(lost) = &self.lost {
                    // What is in host memory is complete, also if a part of it was on its way back.
                    let is_kept = self.holdings.suspended.contents.contains_key(&session);
                    let answered = if is_kept { Ok(()) } else { Err(SuspendError::Unreadable(lost.clone())) };
                    return drop(answer.send(answered));
                }
                self.holdings.suspended.waiting.push((session, answer));
                self.notify_memory(MemoryEvent::SuspendSession { session });
            }
            SuspensionCommand::Take { session, answer } => drop(answer.send(self.take_suspended(session))),
            SuspensionCommand::Adopt { session, owner, contents, answer } => {
                self.holdings.suspended.contents.insert(session, Contents { session: contents, owner, written: 0 });
                self.reserve_address_of(session);
                let _ = answer.send(());
            }
            SuspensionCommand::Released { session } => {
                self.notify_memory(MemoryEvent::Released { session });
            }
            SuspensionCommand::List { answer } => drop(answer.send(self.memory_sessions())),
        }
    }

    fn take_suspended(&mut self, session: SessionId) -> Result<SuspendedSession, SuspendError> {
        if self.holdings.sessions.contains_key(&session) && self.lost.is_none() {
            return Err(SuspendError::OnDevice);
        }
        let contents = self.forget_suspended(session).ok_or(SuspendError::NoSession)?;
        self.close_session(session);
        Ok(contents.session)
    }

    fn memory_sessions(&self) -> Vec<MemorySession> {
        let now = clock::now();
        let on_device = self.memory.session_states().map(|SessionState { session, bytes, idle_since, is_leaving }| {
            let idle_ns = idle_since.map(|since| now.0.saturating_sub(since.0));
            let place = if is_leaving { SessionPlace::Leaving } else { SessionPlace::Device { idle_ns } };
            MemorySession { session, bytes, place }
        });
        let has_memory = |session: &SessionId| self.holdings.sessions.contains_key(session);
        let contents = self.holdings.suspended.contents.iter().filter(|(session, _)| !has_memory(session));
        let suspended = contents.map(|(session, contents)| MemorySession {
            session: *session,
            bytes: contents.session.bytes,
            place: SessionPlace::Host,
        });
        on_device.chain(suspended).collect()
    }

    pub(super) fn suspension_statistics(&self) -> SuspensionStatistics {
        let suspended = &self.holdings.suspended;
        let host = suspended.contents.iter().filter(|(session, _)| !self.holdings.sessions.contains_key(session));
        let (sessions, bytes) = host.fold((0, 0), |(count, bytes), (_, it)| (count + 1, bytes + it.session.bytes));
        let (suspensions, resumptions, failures) = (suspended.suspensions, suspended.resumptions, suspended.failures);
        SuspensionStatistics { sessions, bytes, suspensions, resumptions, failures }
    }

    /// Begins to copy the memory of a session to host memory.
    pub(super) fn suspend(&mut self, session: SessionId, place: Place) {
        match self.leave(session, place) {
            Ok(leaving) => self.holdings.suspended.leaving.push(leaving),
            Err(error) => {
                let is_held = error == SuspendError::Busy;
                self.note_memory(MemoryEvent::StaysOnDevice { session, is_held });
                if !is_held {
                    self.note_stays(session, error);
                }
            }
        }
    }

    fn leave(&mut self, session: SessionId, place: Place) -> Result<Leaving, SuspendError> {
        if let Some(lost) = &self.lost {
            return Err(SuspendError::Unreadable(lost.clone()));
        }
        let own = self.shared.sessions.find(session).ok_or(SuspendError::NoSession)?;
        if !own.leave() {
            return Err(SuspendError::Busy);
        }
        if self.holdings.suspended.contents.contains_key(&session) {
            return Ok(Leaving { session, place, copied: None });
        }
        let host = self.holdings.suspended.host.take(&own.function.key.tenant, place.bytes);
        let host = host.inspect_err(|_| own.set_back())?;
        let contents = SuspendedSession::new(place.bytes, own.address(), host);
        Ok(Leaving { session, place, copied: Some(Contents { session: contents, owner: own.function.id, written: 0 }) })
    }

    fn note_stays(&mut self, session: SessionId, error: SuspendError) {
        tracing::warn!(session = session.0, %error, "a session cannot be suspended");
        self.holdings.suspended.failures += 1;
        self.holdings.suspended.answer(session, &Err(error));
    }

    /// Copies the next piece of a session, in each direction. Returns whether there was one.
    pub(super) fn advance_suspensions(&mut self) -> bool {
        if self.holdings.suspended.is_idle() {
            return false;
        }
        // At ordinary priority, as constants are loaded.
        priority::at_ordinary_priority(self.wake_priority, || {
            let has_freed = self.holdings.suspended.unused.pop().is_some();
            let has_copied = self.copy_piece_out();
            self.copy_piece_back() || has_copied || has_freed
        })
    }

    fn copy_piece_out(&mut self) -> bool {
        let Some(leaving) = self.holdings.suspended.leaving.first() else { return false };
        let session = leaving.session;
        let missing = leaving.copied.as_ref().and_then(|contents| contents.session.missing());
        let answer = match (&self.lost, self.holdings.sessions.get(&session), missing) {
            (Some(lost), ..) => Err(DeviceError::Lost(lost.clone())),
            (None, Some(memory), Some((at, bytes))) => {
                let mut piece = vec![0; bytes];
                let at = DeviceOffset(memory.at.0 + at);
                self.device.read(at, &mut piece).map(|()| Some(piece))
            }
            (None, ..) => Ok(None),
        };
        match self.check(answer) {
            Ok(Some(piece)) => {
                let first = self.holdings.suspended.leaving.first_mut();
                if let Some(contents) = first.and_then(|leaving| leaving.copied.as_mut()) {
                    contents.session.add(piece);
                }
            }
            Ok(None) => self.end_suspension(),
            Err(error) => {
                let Leaving { copied, .. } = self.holdings.suspended.leaving.remove(0);
                copied.into_iter().for_each(|contents| self.holdings.suspended.discard(contents));
                if let Some(own) = self.shared.sessions.find(session) {
                    own.set_back();
                }
                self.note_stays(session, SuspendError::Unreadable(error.to_string()));
                self.notify_memory(MemoryEvent::StaysOnDevice { session, is_held: false });
                self.act();
            }
        }
        true
    }

    /// The first session of those that leave has left: frees its memory.
    fn end_suspension(&mut self) {
        let Leaving { session, place, copied } = self.holdings.suspended.leaving.remove(0);
        if let Some(contents) = copied {
            self.holdings.suspended.contents.insert(session, contents);
        }
        // Before the memory is cleared: what cannot be cleared is then free, and is withheld.
        self.notify_memory(MemoryEvent::Suspended { session });
        self.release_memory(session, place);
        if let Some(contents) = self.holdings.suspended.contents.get_mut(&session) {
            contents.written = 0;
        }
        self.reserve_address_of(session);
        self.holdings.suspended.suspensions += 1;
        tracing::info!(session = session.0, bytes = place.bytes, "session suspended");
        self.holdings.suspended.answer(session, &Ok(()));
        self.notify_memory(MemoryEvent::Resume);
        self.act();
    }

    /// Whether the contents of an invocation's session are not on the device yet.
    pub(super) fn has_contents_of(&self, task: TaskId) -> bool {
        let session = self.invocations.get(&task).and_then(|invocation| invocation.submission.session.as_ref());
        session.is_some_and(|session| self.holdings.suspended.contents.contains_key(&session.id))
    }

    /// Begins to copy the contents of an invocation's session to the device. The session keeps its
    /// memory from now on. Meanwhile the invocation is not ready for the scheduler, so that others
    /// have their turn.
    pub(super) fn begin_return(&mut self, task: TaskId) {
        self.begin_session(task);
        self.note_memory(MemoryEvent::Prepared { task });
        self.note_ready(task, None);
        self.notify_scheduler(TaskEvent::TaskUnready { task });
        self.holdings.suspended.returning.push(task);
    }

    fn copy_piece_back(&mut self) -> bool {
        let Some(&task) = self.holdings.suspended.returning.first() else { return false };
        let session = self.invocations.get(&task).and_then(|invocation| invocation.submission.session.clone());
        let Some(session) = session.filter(|_| self.lost.is_none()) else {
            // It was cancelled. The copy continues for the next flush.
            self.holdings.suspended.returning.remove(0);
            return true;
        };
        let Worker { holdings, device, .. } = self;
        let contents = holdings.suspended.contents.get_mut(&session.id);
        let (Some(memory), Some(contents)) = (holdings.sessions.get(&session.id), contents) else {
            self.holdings.suspended.returning.remove(0);
            self.fail(task, InvokeError::NoSession);
            self.act();
            return true;
        };
        let Some((number, at, piece)) = contents.session.piece_from(contents.written) else {
            self.end_return(task, &session);
            return true;
        };
        let answer = device.write(DeviceOffset(memory.at.0 + at), piece);
        // A piece that was refused is written again for the next flush.
        contents.written = if answer.is_ok() { number + 1 } else { number };
        if let Err(error) = self.check(answer) {
            self.holdings.suspended.returning.remove(0);
            self.fail_on(task, "the session cannot be resumed", &error);
            self.act();
        }
        true
    }

    /// The contents of an invocation's session are on the device: the invocation is ready.
    fn end_return(&mut self, task: TaskId, session: &Arc<Session>) {
        self.holdings.suspended.returning.remove(0);
        if let Some(contents) = self.holdings.suspended.contents.remove(&session.id) {
            self.holdings.suspended.discard(contents);
        }
        session.set_back();
        self.holdings.suspended.resumptions += 1;
        tracing::info!(session = session.id.0, function = %session.function.key, "session resumed");
        self.holdings.suspended.returned.insert(task);
        self.become_ready(task);
        self.act();
    }

    /// Keeps the address of a session's contents free for its return, as far as the device can.
    pub(super) fn reserve_address_of(&mut self, session: SessionId) {
        let Some(Contents { session: contents, .. }) = self.holdings.suspended.contents.get(&session) else { return };
        if let Some(address) = contents.address {
            self.device.reserve_address(contents.tenant().as_str(), address, contents.bytes);
        }
    }

    /// Takes the contents of a session that is closed.
    fn forget_suspended(&mut self, session: SessionId) -> Option<Contents> {
        let contents = self.holdings.suspended.contents.remove(&session)?;
        if let Some(address) = contents.session.address {
            self.device.release_address(contents.session.tenant().as_str(), address);
        }
        Some(contents)
    }

    /// Drops the contents of a session that is closed.
    pub(super) fn drop_suspended(&mut self, session: SessionId) {
        if let Some(contents) = self.forget_suspended(session) {
            self.holdings.suspended.discard(contents);
        }
    }

    /// Drops the contents of all sessions of a function that is unloaded.
    pub(super) fn forget_suspended_of(&mut self, owner: FunctionId) {
        let all = self.holdings.suspended.contents.iter();
        let own: Vec<SessionId> = all.filter(|(_, it)| it.owner == owner).map(|(session, _)| *session).collect();
        for session in own {
            self.drop_suspended(session);
            self.note_memory(MemoryEvent::SessionClosed { session });
        }
    }
}
