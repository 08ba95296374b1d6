//! Suspending and moving CUDA sessions, as other threads see it.

use crate::config::FunctionKey;
use crate::error::InvokeError;
use crate::event::{Command, SuspensionCommand};
use crate::handle::EngineHandle;
use crate::session::SessionId;
use crate::suspension::{MemorySession, SuspendError, SuspendedSession};
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::time::Duration;

impl EngineHandle {
    /// Moves the memory of a CUDA session to host memory, once its running flush has ended. The next
    /// flush brings it back. Succeeds at once if the memory is not on the device. Blocks for at most
    /// `patience`.
    ///
    /// # Errors
    /// If there is no such session, or no host memory for it, or its memory is lost.
    /// [`SuspendError::Busy`] after the time: the session is suspended later.
    pub fn suspend_session(&self, session: SessionId, patience: Duration) -> Result<(), SuspendError> {
        let (answer, answered) = bounded(1);
        self.send(Command::Suspension(SuspensionCommand::Suspend { session, answer }));
        answered.recv_timeout(patience).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(SuspendError::Busy),
            RecvTimeoutError::Disconnected => Err(SuspendError::ShuttingDown),
        })
    }

    /// Keeps a CUDA session from being suspended until its next flush arrives, or until
    /// [`EngineHandle::release_session`]. Returns whether it is suspended already, or on its way.
    /// For the client's thread, which then has a flush.
    pub fn hold_session(&self, session: SessionId) -> bool {
        self.shared.sessions.find(session).is_some_and(|session| session.hold())
    }

    /// Ends [`EngineHandle::hold_session`].
    pub fn release_session(&self, session: SessionId) {
        if self.shared.sessions.find(session).is_some_and(|session| session.release()) {
            self.send(Command::Suspension(SuspensionCommand::Released { session }));
        }
    }

    /// Takes the contents of a suspended session and closes the session. Blocks.
    ///
    /// # Errors
    /// If there is no such session, or it is not suspended.
    pub fn take_suspended(&self, session: SessionId) -> Result<SuspendedSession, SuspendError> {
        let asked = self.ask(|answer| Command::Suspension(SuspensionCommand::Take { session, answer }));
        asked.unwrap_or(Err(SuspendError::ShuttingDown))
    }

    /// Opens a CUDA session with the contents of a suspended one, possibly of another engine. As
    /// [`EngineHandle::open_memory`]; its first flush brings the contents to the device, at the
    /// address that kernels know. Blocks.
    ///
    /// # Errors
    /// As [`EngineHandle::open_memory`], with the contents.
    pub fn open_suspended(
        &self,
        function: &FunctionKey,
        contents: SuspendedSession,
    ) -> Result<SessionId, Box<(InvokeError, SuspendedSession)>> {
        let Some(function) = self.shared.find(function) else {
            return Err(Box::new((InvokeError::UnknownFunction, contents)));
        };
        let (id, owner) = (SessionId(self.shared.next_id()), function.id);
        if let Err(error) = self.shared.sessions.open_suspended(id, function, &contents) {
            return Err(Box::new((error, contents)));
        }
        // Before the first flush, which may overtake other commands. An engine that stops refuses
        // the flush.
        self.ask(|answer| Command::Suspension(SuspensionCommand::Adopt { session: id, owner, contents, answer }));
        Ok(id)
    }

    /// The CUDA sessions of this engine that have memory, on the device or suspended. Blocks.
    pub fn memory_sessions(&self) -> Vec<MemorySession> {
        self.ask(|answer| Command::Suspension(SuspensionCommand::List { answer })).unwrap_or_default()
    }
}
