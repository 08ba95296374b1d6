//! Sessions as all threads see them: whether a step is running, and the values of the session's
//! symbols.
//!
//! A session runs one step at a time. A step reads the values when it is admitted and replaces them
//! when it succeeds. A step that fails or is cancelled leaves both the values and the state
//! unchanged, since no step overwrites state that it reads ([`atoll_kgraph::Session`]). The
//! engine's thread manages the memory of a session (`worker/sessions.rs`), which exists from its
//! first step on. The memory of a CUDA session may be suspended to host memory and come back
//! (`worker/suspension.rs`).

use crate::error::InvokeError;
use crate::function::Function;
use crate::limits::SESSIONS_PER_TENANT_MAX;
use crate::suspension::SuspendedSession;
pub use atoll_core::memory::SessionId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) function: Arc<Function>,
    /// Bytes of its memory, if it is a CUDA session: its steps are flushes.
    pub(crate) memory_bytes: Option<u64>,
    /// How long it is kept without a step, in nanoseconds.
    pub(crate) idle_ns: u64,
    /// The address of its memory as kernels see it, once it is known; 0 before that.
    address: AtomicU64,
    /// Its client is about to use it, so it is not suspended now.
    is_held: AtomicBool,
    /// Its suspension was refused because of that, and is tried again afterwards.
    is_asked: AtomicBool,
    /// Its memory is in host memory, or on its way there or back.
    is_away: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// The values of the session's symbols after the steps so far.
    values: Vec<i64>,
    /// The values once the running step succeeds.
    next: Option<Vec<i64>>,
    /// The form of its state, fixed by its first successful step.
    form: Option<StateForm>,
    /// Whether a step has succeeded.
    is_begun: bool,
    is_running: bool,
}

/// How the state of a session is laid out: bytes, and the dimensions that stay the same
/// ([`atoll_kgraph::Session::form`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateForm {
    pub(crate) bytes: u64,
    pub(crate) dimensions: Vec<Vec<i64>>,
}

impl Session {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of its memory as kernels see it, if that is known. It stays the same.
    pub(crate) fn address(&self) -> Option<u64> {
        Some(self.address.load(Ordering::Relaxed)).filter(|address| *address != 0)
    }

    pub(crate) fn set_address(&self, address: u64) {
        self.address.store(address, Ordering::Relaxed);
    }

    /// Its client is about to use it: its suspension does not begin before [`Session::release`],
    /// which the arrival of a flush calls, too. Returns whether it has begun already.
    pub(crate) fn hold(&self) -> bool {
        self.is_held.store(true, Ordering::SeqCst);
        self.is_away.load(Ordering::SeqCst)
    }

    /// Ends [`Session::hold`]. Returns whether a suspension was refused meanwhile.
    pub(crate) fn release(&self) -> bool {
        self.is_held.store(false, Ordering::SeqCst);
        self.is_asked.swap(false, Ordering::SeqCst)
    }

    /// Begins a suspension. Returns false if its client holds the session, which then finds out when
    /// it releases it.
    pub(crate) fn leave(&self) -> bool {
        self.is_asked.store(true, Ordering::SeqCst);
        self.is_away.store(true, Ordering::SeqCst);
        // Each side first sets its own flag and then reads the other's.
        let may_leave = !self.is_held.load(Ordering::SeqCst);
        if may_leave {
            self.is_asked.store(false, Ordering::SeqCst);
        } else {
            self.is_away.store(false, Ordering::SeqCst);
        }
        may_leave
    }

    /// Its memory is on the device.
    pub(crate) fn set_back(&self) {
        self.is_away.store(false, Ordering::SeqCst);
    }

    /// The current values of its symbols.
    pub(crate) fn values(&self) -> Vec<i64> {
        self.progress().values.clone()
    }

    /// Records the values after the running step. Its state must have the form that it had in
    /// earlier steps.
    pub(crate) fn note_next(&self, next: Vec<i64>, form: StateForm) -> Result<(), InvokeError> {
        let mut progress = self.progress();
        let before = progress.form.get_or_insert_with(|| form.clone());
        if *before != form {
            let states = self.function.graph().session.states.iter();
            let differing = states.zip(before.dimensions.iter().zip(&form.dimensions)).find(|(_, (a, b))| a != b);
            let begun = match differing {
                Some((state, (before, now))) => {
                    format!("with shape {before:?} of state `{}`, but this step needs {now:?}", state.input)
                }
                None => format!("with {} bytes of state, but this step needs {}", before.bytes, form.bytes),
            };
            let reason = format!(
                "the session began {begun}; all requests of a session or sequence have the same number of rows; begin \
                 another one for another number"
            );
            return Err(InvokeError::BadInput(reason));
        }
        progress.next = Some(next);
        Ok(())
    }

    /// Starts a step.
    pub(crate) fn begin(self: &Arc<Session>) -> Result<Step, InvokeError> {
        let mut progress = self.progress();
        if std::mem::replace(&mut progress.is_running, true) {
            return Err(InvokeError::SessionBusy);
        }
        drop(progress);
        Ok(Step(Some(Arc::clone(self))))
    }
}

/// A running step of a session.
#[derive(Debug)]
pub(crate) struct Step(Option<Arc<Session>>);

impl Step {
    /// Ends the step: the session continues with the new values if it is complete, or with the old
    /// ones.
    pub(crate) fn end(mut self, is_complete: bool) {
        self.release(is_complete);
    }

    fn release(&mut self, is_complete: bool) {
        let Some(session) = self.0.take() else { return };
        let mut progress = session.progress();
        progress.is_running = false;
        if let Some(next) = progress.next.take().filter(|_| is_complete) {
            progress.values = next;
            progress.is_begun = true;
        } else if !progress.is_begun {
            // A first step that failed does not fix the form of the state.
            progress.form = None;
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.release(false);
    }
}

/// How long a session is kept, and where it begins.
struct Kept {
    idle_ns: u64,
    address: Option<u64>,
    is_away: bool,
}

/// The open sessions of an engine.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionId, Arc<Session>>>);

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session of a function.
    pub(crate) fn open(&self, id: SessionId, function: Arc<Function>, idle_ns: u64) -> Result<(), InvokeError> {
        let kept = &function.graph().session;
        if kept.is_empty() {
            let reason = format!(
                "function `{}` keeps no state between invocations, so it has no sessions; compile the model with \
                 --state",
                function.key
            );
            return Err(InvokeError::BadInput(reason));
        }
        let values = kept.first();
        self.insert(id, function, values, None, Kept { idle_ns, address: None, is_away: false })
    }

    /// Opens a CUDA session with memory of its own, which is kept until the session is closed.
    pub(crate) fn open_memory(&self, id: SessionId, function: Arc<Function>, bytes: u64) -> Result<(), InvokeError> {
        self.insert(id, function, Vec::new(), Some(bytes), Kept { idle_ns: u64::MAX, address: None, is_away: false })
    }

    /// As [`Sessions::open_memory`], with the size and address of a suspended session.
    pub(crate) fn open_suspended(
        &self,
        id: SessionId,
        function: Arc<Function>,
        contents: &SuspendedSession,
    ) -> Result<(), InvokeError> {
        let kept = Kept { idle_ns: u64::MAX, address: contents.address, is_away: true };
        self.insert(id, function, Vec::new(), Some(contents.bytes), kept)
    }

    fn insert(
        &self,
        id: SessionId,
        function: Arc<Function>,
        values: Vec<i64>,
        memory_bytes: Option<u64>,
        Kept { idle_ns, address, is_away }: Kept,
    ) -> Result<(), InvokeError> {
        let mut all = self.all();
        let tenant = &function.key.tenant;
        if all.values().filter(|session| session.function.key.tenant == *tenant).count() >= SESSIONS_PER_TENANT_MAX {
            return Err(InvokeError::TooManySessions { limit: SESSIONS_PER_TENANT_MAX });
        }
        let progress = Progress { values, next: None, form: None, is_begun: false, is_running: false };
        let session = Session {
            id,
            function,
            memory_bytes,
            idle_ns,
            address: AtomicU64::new(address.unwrap_or_default()),
            is_held: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            is_away: AtomicBool::new(is_away),
            progress: Mutex::new(progress),
        };
        all.insert(id, Arc::new(session));
        Ok(())
    }

    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        self.all().get(&id).cloned()
    }

    /// Removes a session: its further steps are refused.
    pub(crate) fn remove(&self, id: SessionId) {
        self.all().remove(&id);
    }

    /// Removes all sessions of a function.
    pub(crate) fn remove_of(&self, function: &Arc<Function>) {
        self.all().retain(|_, session| !Arc::ptr_eq(&session.function, function));
    }
}
