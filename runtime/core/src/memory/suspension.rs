//! Suspension of sessions: their memory moves to host memory when others need it.
//!
//! An invocation that would be refused beside the sessions of the device, or of its tenant's quota,
//! waits until enough sessions are suspended. Sessions are suspended one after the other, the one
//! that has been idle for longest first, and never one with a prepared invocation. If the
//! invocation needs its memory at a place that another session has, that session is first. If that
//! one stays, none is suspended for the invocation.
//!
//! A session is suspended once it has been idle for a set time, or once the invocation has waited
//! for that time. So sessions that take turns on a full device do not spend their time on copies,
//! and no invocation waits for an idle moment that never comes.
//!
//! A suspended session is unknown here: its next invocation is like the first one of a new session,
//! except that its memory may have to be at the same place as before ([`SessionSpec::at`]).

use super::event::Action;
use super::ledger::Purpose;
use super::min_residency::Victims;
use super::quota::TenantBytes;
use super::session_state::{SessionState, Suspension};
use super::sessions::Session;
use super::spec::{Place, SessionId, SessionSpec, Turn, earlier};
use super::{Invocation, Memory};
use crate::ids::{DeviceOffset, Nanos, TaskId};
use crate::tenant::Tenant;

/// How long a session stays after its suspension was refused, unless it is idle for longer anyway.
const STAYS_NS: u64 = 1_000_000_000;

impl Memory {
    /// Sets how long a session is idle before others may have its memory, in nanoseconds; `None` if
    /// sessions are suspended only on request. Memory of sessions is allocated from the offset
    /// `from` on, if there is room.
    pub fn with_suspension(mut self, idle_ns: Option<u64>, from: DeviceOffset) -> Memory {
        (self.suspend_idle_ns, self.sessions.from) = (idle_ns, from);
        self
    }

    /// The sessions with memory that may be suspended.
    pub fn session_states(&self) -> impl Iterator<Item = SessionState> {
        self.sessions.sessions.iter().filter_map(|(id, session)| {
            let Suspension { may_suspend, running, idle_since, is_leaving, .. } = session.suspension;
            let bytes = session.place.filter(|_| may_suspend && session.begun)?.bytes;
            let idle_since = (running == 0).then_some(idle_since);
            Some(SessionState { session: *id, bytes, idle_since, is_leaving })
        })
    }

    /// Allocates memory at the place that it needs, after freeing memory of past invocations that is
    /// there.
    pub(super) fn allocate_at(&mut self, place: Place) -> Option<Place> {
        while !self.ledger.allocate_at(place) {
            let is_short = place.bytes > self.ledger.free_bytes() || self.ledger.has_one_part();
            let freed = match is_short {
                true => self.reclaim_one(Victims::All),
                false => !self.has_session_at(place) && self.reclaim_idle(None),
            };
            if !freed {
                return None;
            }
        }
        Some(place)
    }

    /// Allocates memory for a session, outside of the places that suspended sessions return to if
    /// there is other room.
    pub(super) fn allocate_apart(&mut self, session: SessionId, bytes: u64) -> Option<Place> {
        let left = self.sessions.left.iter().filter(|(id, _)| **id != session).map(|(_, place)| *place);
        let left: Vec<Place> = left.collect();
        let from = self.sessions.from;
        self.ledger
            .allocate_apart(bytes, from, &left)
            .or_else(|| self.allocate(Purpose::Invocation, bytes, Victims::All))
    }

    fn has_session_at(&self, place: Place) -> bool {
        self.sessions.sessions.values().any(|session| session.place.is_some_and(|own| overlap(own, place)))
    }

    /// Whether a session's memory can be had by others, after a while.
    fn may_leave(&self, session: &Session) -> bool {
        let Suspension { may_suspend, stays_until, .. } = session.suspension;
        self.suspend_idle_ns.is_some() && may_suspend && session.place.is_some() && stays_until <= self.now
    }

    /// Bytes of the sessions, of all tenants or of one, that can be suspended for an invocation of
    /// the session `own`.
    pub(super) fn movable_bytes(&self, own: Option<&SessionSpec>, of: Option<&Tenant>) -> TenantBytes {
        let mut bytes = TenantBytes::default();
        for (id, session) in &self.sessions.sessions {
            let is_other = own.is_none_or(|own| own.session != *id) && self.may_leave(session);
            let is_of = of.is_none_or(|tenant| session.tenant == *tenant);
            if is_of && (is_other || session.suspension.is_leaving) {
                bytes += TenantBytes::of(session.class, session.place.map_or(0, |place| place.bytes));
            }
        }
        bytes
    }

    /// Suspends a session for an invocation in turn that does not fit beside all sessions, whose
    /// session returns to a place that is taken, or that `is_stuck`, because only sessions keep
    /// memory from it. Returns whether the invocation can
    /// wait for a suspension.
    pub(super) fn suspend_for(&mut self, turn: Turn, is_stuck: bool) -> bool {
        let is_taken = self.returns_to(turn.1).is_some_and(|place| self.has_session_at(place));
        let waits = is_stuck || is_taken || self.misfit_beside(turn.1, self.sessions.bytes()).is_some();
        waits && self.suspend_one(turn, None)
    }

    /// Where an invocation's session has to get memory, if it has none and kernels know the place.
    fn returns_to(&self, task: TaskId) -> Option<Place> {
        let own = self.invocations[&task].session?;
        let bytes = self.state_bytes(Some(&own));
        own.at.filter(|_| bytes > 0).map(|at| Place { at, bytes })
    }

    /// Suspends a session of the same tenant for an invocation that does not fit the tenant's quota
    /// beside all of the tenant's sessions.
    pub(super) fn suspend_for_quota(&mut self, turn: Turn) {
        let tenant = self.invocations[&turn.1].tenant.clone();
        if self.over_quota_beside(turn.1, self.sessions.bytes_of(&tenant)).is_some() {
            self.suspend_one(turn, Some(&tenant));
        }
    }

    /// Suspends a session, of all or of one tenant, or sets the time when this is to be tried again.
    /// Returns whether there is a session to wait for.
    fn suspend_one(&mut self, turn: Turn, of: Option<&Tenant>) -> bool {
        if self.sessions.sessions.values().any(|session| session.suspension.is_leaving) {
            return true;
        }
        let Some(idle_ns) = self.suspend_idle_ns else { return false };
        let Invocation { session: own, arrived, .. } = self.invocations[&turn.1];
        let wanted = self.returns_to(turn.1).filter(|_| of.is_none());
        let is_in_the_way =
            |session: &Session| wanted.is_some_and(|wanted| session.place.is_some_and(|place| overlap(place, wanted)));
        let others = || self.sessions.sessions.iter().filter(move |(id, _)| own.is_none_or(|own| own.session != **id));
        let stays_taken = others().any(|(_, session)| is_in_the_way(session) && !self.may_leave(session));
        if stays_taken || wanted.is_some_and(|place| !self.ledger.covers(place)) {
            return false;
        }
        let is_free = !others().any(|(_, session)| is_in_the_way(session));
        let is_of = |session: &Session| of.is_none_or(|tenant| session.tenant == *tenant);
        let movable: Vec<_> = others()
            .filter(|(_, session)| is_of(session) && self.may_leave(session) && (is_free || is_in_the_way(session)))
            .map(|(id, session)| (session.suspension.idle_since, *id, session))
            .collect();
        let idle = movable.iter().filter(|(.., session)| session.begun && session.suspension.is_idle());
        let Some(&(since, first, _)) = idle.min_by_key(|(since, id, _)| (*since, *id)) else {
            return !movable.is_empty();
        };
        let at = Nanos(since.0.min(arrived.0).saturating_add(idle_ns));
        match at <= self.now {
            true => self.begin_suspension(first),
            false => self.look_at = earlier(self.look_at, Some(at)),
        }
        true
    }

    /// Suspends a session on request, now or once it has no prepared invocation.
    pub(super) fn suspend_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.suspension.is_wanted = session.suspension.may_suspend;
            self.suspend_wanted(id);
        }
    }

    /// Suspends a session if that was requested and none of its invocations is prepared.
    pub(super) fn suspend_wanted(&mut self, id: SessionId) {
        let may_begin = self.sessions.get_mut(id).is_some_and(|session| {
            let Suspension { is_wanted, is_leaving, .. } = session.suspension;
            is_wanted && session.suspension.is_idle() && !is_leaving && session.begun
        });
        if may_begin && !self.lost {
            self.begin_suspension(id);
        }
    }

    fn begin_suspension(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(place) = session.place else { return };
        session.suspension.is_leaving = true;
        // Its waiting invocation needs memory for the session again.
        let is_of = |invocation: &Invocation| invocation.session.is_some_and(|own| own.session == id);
        let waiting = self.invocations.iter().filter(|(_, invocation)| !invocation.prepared && is_of(invocation));
        let waiting: Vec<TaskId> = waiting.map(|(task, _)| *task).collect();
        for task in waiting {
            self.invocation_mut(task).lacks_memory = true;
            if self.invocations[&task].pinned {
                self.make_cold(task);
            }
        }
        self.actions.push_back(Action::Suspend { session: id, place });
    }

    /// The contents of a session are in host memory: frees its memory.
    pub(super) fn note_suspended(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.suspension.is_leaving) else { return };
        (session.suspension.is_leaving, session.suspension.is_wanted, session.begun) = (false, false, false);
        let (tenant, class, place) = (session.tenant.clone(), session.class, session.place.take());
        let Some(place) = place else { return };
        self.count_state(&tenant, class, place.bytes, false);
        self.ledger.free(place);
        self.sessions.left.insert(id, place);
        self.drop_idle_session(id);
        self.forget_tenant(&tenant);
    }

    /// A session could not be suspended. Unless that is because its client uses it, invocations that
    /// waited for it may not fit any more.
    pub(super) fn note_stays(&mut self, id: SessionId, is_held: bool) {
        let until = Nanos(self.now.0.saturating_add(self.suspend_idle_ns.unwrap_or(0).max(STAYS_NS)));
        let Some(Suspension { is_leaving, is_held: held, is_wanted, stays_until, .. }) = self.suspension_of(id) else {
            return;
        };
        *is_leaving = false;
        if is_held {
            *held = true;
        } else {
            (*is_wanted, *stays_until) = (false, until);
            // Until then requests are refused for it.
            let known = self.sessions.stays_until.filter(|known| *known > self.now);
            self.sessions.stays_until = earlier(known, Some(until));
            self.refuse_misfits();
        }
        self.serve_cold();
    }

    /// The client of a session does not use it now, or its flush has arrived. In that case a
    /// suspension on request begins after the flush.
    pub(super) fn note_released(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.suspension.is_held = false;
            if session.invocations == 0 {
                self.suspend_wanted(id);
            }
            self.serve_cold();
        }
    }

    fn suspension_of(&mut self, id: SessionId) -> Option<&mut Suspension> {
        self.sessions.get_mut(id).map(|session| &mut session.suspension)
    }
}

fn overlap(a: Place, b: Place) -> bool {
    a.at.0 < b.at.0.saturating_add(b.bytes) && b.at.0 < a.at.0.saturating_add(a.bytes)
}
