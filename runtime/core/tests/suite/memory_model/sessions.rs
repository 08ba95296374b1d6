//! Sessions of the world, and where their memory has to be.

use super::{Event, GRANULE, World};
use atoll_core::memory::{FunctionId, Place, SessionId, SessionSpec};
use atoll_core::{TaskId, Tenant};

/// Idle time of a session: some fifty steps of the world.
const IDLE_NS: u64 = 50_000;

pub(super) struct Session {
    function: FunctionId,
    tenant: Tenant,
    bytes: u64,
    /// Its memory, once its first step was prepared.
    place: Option<Place>,
    is_busy: bool,
}

impl World {
    /// A session for an invocation of a function: an idle one, or a new one.
    pub(super) fn pick_session(&mut self, function: FunctionId) -> SessionSpec {
        let idle = self.sessions.iter().filter(|(_, session)| session.function == function && !session.is_busy);
        let idle: Vec<SessionId> = idle.map(|(id, _)| *id).collect();
        let known = if self.rng.below(3) > 0 { self.any_of(idle) } else { None };
        let session = known.unwrap_or_else(|| SessionId(self.number()));
        let bytes = match self.sessions.get(&session) {
            Some(known) => known.bytes,
            None => GRANULE * (1 + self.rng.below(6)) - 3,
        };
        SessionSpec { session, bytes, idle_ns: IDLE_NS, may_suspend: false, at: None }
    }

    pub(super) fn join_session(&mut self, function: FunctionId, SessionSpec { session, bytes, .. }: SessionSpec) {
        let tenant = self.functions[&function].tenant.clone();
        self.sessions
            .entry(session)
            .or_insert(Session { function, tenant, bytes, place: None, is_busy: false })
            .is_busy = true;
    }

    /// A step is prepared: its session has memory, always the same, without data of other tenants.
    pub(super) fn begin_session(&mut self, task: TaskId) {
        let Some(SessionSpec { session: id, .. }) = self.invocations[&task].spec.session else { return };
        let place = self.memory.session_place(id).expect("a prepared step has its session's memory");
        let session = self.sessions.get_mut(&id).expect("it joined");
        match session.place {
            Some(before) => {
                self.totals.resumed += 1;
                assert_eq!(before, place, "the memory of a session does not move");
            }
            // The engine clears it.
            None => self.device.clean(place),
        }
        session.place = Some(place);
        self.device.check_clean(place, session.tenant.as_str());
        self.device.dirty(place, session.tenant.as_str());
    }

    /// A step has ended; its session may be closed with it.
    pub(super) fn leave_session(&mut self, session: Option<SessionSpec>) {
        let Some(SessionSpec { session: id, .. }) = session else { return };
        // A session none of whose steps was prepared ends with its last step.
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.is_busy = false;
        if session.place.is_none() {
            self.sessions.remove(&id);
        } else if self.rng.below(4) == 0 {
            self.send(Event::SessionClosed { session: id });
        }
    }

    pub(super) fn expire_session(&mut self, id: SessionId) {
        self.totals.expired += 1;
        assert!(!self.sessions[&id].is_busy, "a session expires while one of its steps is present");
    }

    /// The memory of a session that ended is cleared, or cannot be.
    pub(super) fn free_state(&mut self, id: SessionId, place: Place) {
        let session = self.sessions.remove(&id).expect("a session ends once");
        assert_eq!(session.place, Some(place), "freed state is the session's");
        if self.fails() {
            self.withheld_max += place.bytes;
            self.note(Event::ClearFailed { place });
        } else {
            self.device.clean(place);
        }
    }

    /// The memory of all sessions.
    pub(super) fn session_places(&self) -> impl Iterator<Item = Place> {
        self.sessions.keys().filter_map(|id| self.memory.session_place(*id))
    }
}
