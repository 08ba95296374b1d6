//! How far the suspension of a session is.

use super::spec::SessionId;
use crate::ids::Nanos;

/// How far the suspension of a session is.
#[derive(Debug)]
pub(super) struct Suspension {
    pub(super) may_suspend: bool,
    /// Its prepared invocations.
    pub(super) running: u32,
    /// When its last prepared invocation ended.
    pub(super) idle_since: Nanos,
    /// It is to be suspended once it has no prepared invocation.
    pub(super) is_wanted: bool,
    /// Its memory is being copied to host memory.
    pub(super) is_leaving: bool,
    /// Its client is about to use it.
    pub(super) is_held: bool,
    /// It could not be suspended, so others do not wait for that before this time.
    pub(super) stays_until: Nanos,
}

/// A session with memory that may be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// The session.
    pub session: SessionId,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Since when it has had no prepared invocation; `None` if it has one.
    pub idle_since: Option<Nanos>,
    /// Whether its memory is being copied to host memory.
    pub is_leaving: bool,
}

impl Suspension {
    /// The state of a new session.
    pub(super) fn of(may_suspend: bool) -> Suspension {
        let (idle_since, stays_until) = (Nanos(0), Nanos(0));
        let (is_wanted, is_leaving, is_held) = (false, false, false);
        Suspension { may_suspend, running: 0, idle_since, is_wanted, is_leaving, is_held, stays_until }
    }

    /// Whether it has no prepared invocation, and its client is not about to use it.
    pub(super) fn is_idle(&self) -> bool {
        self.running == 0 && !self.is_held
    }

    /// An invocation of the session ended.
    pub(super) fn ended(&mut self, was_prepared: bool, now: Nanos) {
        if was_prepared {
            (self.running, self.idle_since) = (self.running - 1, now);
        }
    }
}
