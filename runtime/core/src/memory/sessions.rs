//! State of sessions: memory that one invocation leaves for the next one of the session.
//!
//! A session begins with its first invocation, which gets the session's memory together with its
//! own. Once that invocation is prepared, the session keeps the memory until it is closed, was idle
//! for its idle time, or its function is unloaded; it is never reclaimed, but may be moved to host
//! memory (`suspension.rs`). It counts for its tenant's quota. All sessions together may have at
//! most [`SESSIONS_SHARE`] of a device, and an invocation that would only fit if sessions ended is
//! refused rather than queued.

use super::Memory;
use super::event::Action;
use super::ledger::{ALIGN, Purpose, granules};
use super::limits::SESSIONS_SHARE;
use super::min_residency::Victims;
use super::quota::TenantBytes;
use super::session_state::Suspension;
use super::spec::{FunctionId, InvocationSpec, Place, SessionId, SessionSpec, earlier};
use crate::ids::{Class, DeviceOffset, Nanos, TaskId};
use crate::tenant::Tenant;
use std::collections::{BTreeMap, BTreeSet};

/// All sessions.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) sessions: BTreeMap<SessionId, Session>,
    /// When sessions with memory and without invocations expire.
    expiring: BTreeSet<(Nanos, SessionId)>,
    /// Bytes of their memory.
    bytes: u64,
    by_tenant: BTreeMap<Tenant, TenantBytes>,
    /// Where suspended sessions had their memory; avoided by new ones.
    pub(super) left: BTreeMap<SessionId, Place>,
    /// Where to look for memory of sessions that may be suspended. Other devices begin elsewhere,
    /// so that the places of sessions rarely overlap when one moves.
    pub(super) from: DeviceOffset,
    /// When the next session that could not be suspended may be tried again.
    pub(super) stays_until: Option<Nanos>,
}

pub(super) struct Session {
    function: FunctionId,
    pub(super) tenant: Tenant,
    pub(super) class: Class,
    idle_ns: u64,
    pub(super) place: Option<Place>,
    /// Whether an invocation was prepared with the memory; from then on the session keeps it.
    pub(super) begun: bool,
    /// Parts of its memory that could not be cleared when they were freed, and have not been
    /// cleared since.
    unclear: Vec<Place>,
    /// Invocations that have arrived and not ended.
    pub(super) invocations: u32,
    /// Closes when the last invocation ends.
    closing: bool,
    expires: Option<Nanos>,
    /// Whether its memory may be moved to host memory, and how far that is.
    pub(super) suspension: Suspension,
}

impl Sessions {
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    fn set_expiry(&mut self, id: SessionId, at: Option<Nanos>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut session.expires, at) {
            self.expiring.remove(&(before, id));
        }
        self.expiring.extend(at.map(|at| (at, id)));
    }

    /// When the next session expires, or may be tried again after `now`.
    pub(super) fn next_change(&self, now: Nanos) -> Option<Nanos> {
        let expiry = self.expiring.first().map(|(at, _)| *at);
        earlier(expiry, self.stays_until.filter(|until| *until > now))
    }

    /// Bytes of memory of all sessions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory of a tenant's sessions.
    pub(super) fn bytes_of(&self, tenant: &Tenant) -> TenantBytes {
        self.by_tenant.get(tenant).copied().unwrap_or_default()
    }

    /// Notes that freed memory, which may have been assigned to a session since, cannot be cleared.
    pub(super) fn note_unclear(&mut self, place: Place) {
        for session in self.sessions.values_mut().filter(|session| !session.begun) {
            let Some(own) = session.place else { continue };
            let (from, to) = (own.at.0.max(place.at.0), (own.at.0 + own.bytes).min(place.at.0 + place.bytes));
            session.unclear.extend((from < to).then(|| Place { at: DeviceOffset(from), bytes: to - from }));
        }
    }

    /// Whether a session has memory that stays.
    fn has_memory(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.place.is_some() && !session.suspension.is_leaving)
    }
}

impl Memory {
    /// The memory of a session, once its first invocation was granted some.
    pub fn session_place(&self, session: SessionId) -> Option<Place> {
        self.sessions.sessions.get(&session)?.place
    }

    /// Number of sessions, and bytes of their memory.
    pub fn sessions(&self) -> (usize, u64) {
        (self.sessions.sessions.len(), self.sessions.bytes)
    }

    /// Bytes that an invocation's session still needs.
    pub(super) fn state_bytes(&self, session: Option<&SessionSpec>) -> u64 {
        let spec = session.filter(|spec| spec.bytes > 0 && !self.sessions.has_memory(spec.session));
        // Rounding up cannot overflow on a size that a device can have.
        spec.map_or(0, |spec| granules(spec.bytes, ALIGN).unwrap_or(spec.bytes))
    }

    /// Whether `state_bytes` more would exceed the share of sessions in the device, beside sessions
    /// with `bytes` bytes.
    pub(super) fn exceeds_share(&self, bytes: u64, state_bytes: u64) -> bool {
        let (numerator, denominator) = SESSIONS_SHARE;
        state_bytes > 0 && bytes.saturating_add(state_bytes) > self.ledger.total() / denominator * numerator
    }

    /// An invocation of a session arrives; the first one creates the session.
    pub(super) fn join_session(&mut self, spec: &InvocationSpec) {
        let Some(SessionSpec { session: id, idle_ns, may_suspend, .. }) = spec.session else { return };
        let new = || Session {
            function: spec.stages[0].function,
            tenant: spec.tenant.clone(),
            class: spec.class,
            idle_ns,
            place: None,
            begun: false,
            unclear: Vec::new(),
            invocations: 0,
            closing: false,
            expires: None,
            suspension: Suspension::of(may_suspend),
        };
        self.sessions.sessions.entry(id).or_insert_with(new).invocations += 1;
        self.sessions.set_expiry(id, None);
    }

    /// Allocates memory for an invocation's session, if it has none. Returns `None` if there is no
    /// memory, otherwise whether the memory is new.
    pub(super) fn obtain_state(&mut self, task: TaskId) -> Option<bool> {
        let Some(spec) = self.invocations[&task].session else { return Some(false) };
        let bytes = self.state_bytes(Some(&spec));
        if bytes == 0 {
            return Some(false);
        }
        let is_leaving = self.sessions.get_mut(spec.session).is_some_and(|session| session.suspension.is_leaving);
        // Sessions that are to leave for it have their memory until then.
        let exceeds = spec.may_suspend && self.exceeds_share(self.sessions.bytes, bytes);
        if is_leaving || exceeds || bytes > self.obtainable_bytes() {
            return None;
        }
        let place = match spec {
            SessionSpec { at: Some(at), .. } => self.allocate_at(Place { at, bytes }),
            SessionSpec { may_suspend: true, .. } => self.allocate_apart(spec.session, bytes),
            _ => self.allocate(Purpose::Invocation, bytes, Victims::All),
        }?;
        let session = self.sessions.get_mut(spec.session).expect("a session exists while it has invocations");
        session.place = Some(place);
        let (tenant, class) = (session.tenant.clone(), session.class);
        self.count_state(&tenant, class, place.bytes, true);
        Some(true)
    }

    pub(super) fn count_state(&mut self, tenant: &Tenant, class: Class, bytes: u64, is_more: bool) {
        let change = TenantBytes::of(class, bytes);
        let add = |sum: &mut TenantBytes| match is_more {
            true => *sum += change,
            false => {
                *sum = TenantBytes { all: sum.all - change.all, best_effort: sum.best_effort - change.best_effort }
            }
        };
        add(&mut self.tenant_mut(tenant).held);
        let own = self.sessions.by_tenant.entry(tenant.clone()).or_default();
        add(own);
        if *own == TenantBytes::default() {
            self.sessions.by_tenant.remove(tenant);
        }
        self.sessions.bytes = if is_more { self.sessions.bytes + bytes } else { self.sessions.bytes - bytes };
    }

    /// Frees session memory that an invocation got and that was not written yet.
    pub(super) fn take_state_back(&mut self, task: TaskId) {
        let Some(SessionSpec { session: id, .. }) = self.invocations[&task].session else { return };
        let untouched = self.sessions.get_mut(id).filter(|session| !session.begun && session.invocations == 1);
        let taken =
            untouched.and_then(|s| Some((s.place.take()?, s.tenant.clone(), s.class, std::mem::take(&mut s.unclear))));
        if let Some((place, tenant, class, unclear)) = taken {
            self.count_state(&tenant, class, place.bytes, false);
            self.ledger.free(place);
            unclear.into_iter().for_each(|part| self.withhold(part));
        }
    }

    /// An invocation was prepared: its session has begun.
    pub(super) fn begin_session(&mut self, task: TaskId) {
        let Some(SessionSpec { session: id, .. }) = self.invocations[&task].session else { return };
        let session = self.sessions.get_mut(id).expect("a session exists while it has invocations");
        session.suspension.running += 1;
        if !std::mem::replace(&mut session.begun, true) {
            self.sessions.left.remove(&id);
            // Waiting invocations may no longer fit beside its memory.
            self.refuse_misfits();
        }
    }

    /// An invocation of a session ends, which was prepared or not.
    pub(super) fn session_invocation_ended(&mut self, task: TaskId, was_prepared: bool) {
        let Some(SessionSpec { session: id, .. }) = self.invocations[&task].session else { return };
        self.take_state_back(task);
        let now = self.now;
        let session = self.sessions.get_mut(id).expect("a session exists while it has invocations");
        session.invocations -= 1;
        session.suspension.ended(was_prepared, now);
        if session.invocations > 0 {
            return self.suspend_wanted(id);
        }
        let (closing, begun, expires) = (session.closing, session.begun, Nanos(now.0.saturating_add(session.idle_ns)));
        match begun && !closing {
            true => {
                self.sessions.set_expiry(id, Some(expires));
                self.suspend_wanted(id);
            }
            false => self.drop_session(id),
        }
    }

    /// Closes a session, once its last invocation has ended.
    pub(super) fn close_session(&mut self, id: SessionId) {
        self.sessions.left.remove(&id);
        self.drop_session(id);
    }

    /// Forgets a session that was suspended, unless an invocation waits for it.
    pub(super) fn drop_idle_session(&mut self, id: SessionId) {
        if self.sessions.get_mut(id).is_some_and(|session| session.invocations == 0) {
            self.drop_session(id);
        }
    }

    /// Removes a session from the device, once its last invocation has ended.
    fn drop_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.closing = true;
        if session.invocations > 0 {
            return;
        }
        self.sessions.set_expiry(id, None);
        let Some(Session { place, tenant, class, .. }) = self.sessions.sessions.remove(&id) else { return };
        if let Some(place) = place {
            self.count_state(&tenant, class, place.bytes, false);
            self.forget_tenant(&tenant);
            self.actions.push_back(Action::FreeState { session: id, place });
            self.ledger.free(place);
        }
    }

    /// Closes sessions that were idle for their idle time. Returns whether there were any.
    pub(super) fn expire_sessions(&mut self) -> bool {
        let mut any = false;
        while let Some((_, id)) = self.sessions.expiring.first().copied().filter(|(at, _)| *at <= self.now) {
            self.actions.push_back(Action::SessionExpired { session: id });
            self.close_session(id);
            any = true;
        }
        any
    }

    /// Closes the sessions of a function that is unloaded; it has no invocations left.
    pub(super) fn close_sessions_of(&mut self, function: FunctionId) {
        let own = self.sessions.sessions.iter().filter(|(_, session)| session.function == function).map(|(id, _)| *id);
        let own: Vec<SessionId> = own.collect();
        own.into_iter().for_each(|id| self.close_session(id));
    }
}
