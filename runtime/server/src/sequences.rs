//! Sequences of requests, as in Triton's sequence batcher: requests with the same `sequence_id` are
//! steps of one session of a model that keeps state. Some models keep none, and get control inputs
//! that say where a request stands in its sequence (`control.rs`).
//!
//! The steps of a session run under one instance of the function, unless they name others. An
//! instance that drains is removed when the sequences that run under it have ended.
//!
//! The first request of a sequence sets `sequence_start`, the last one `sequence_end`. Requests of
//! a sequence run one after the other, in order of arrival. A sequence whose first request failed
//! does not exist; a second `sequence_start` restarts the sequence. The engine owns the sessions
//! and expires them; this module maps sequence ids to session ids, and expires the sequences that
//! have no session.

pub(crate) mod control;
pub(crate) mod place;

use crate::inference::invoke_by;
use crate::model::Model;
use crate::running::Permit;
use atoll_engine::limits::SESSIONS_PER_TENANT_MAX;
use atoll_engine::{ChainRequest, DeviceId, FunctionKey, InvocationResult, InvokeError, SessionId, Tenant};
use atoll_fleet::Inference;
use place::{Id, Place};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// The tenant of the caller, the function, and the sequence id. Equal ids of different tenants are
/// different sequences.
type Key = (Tenant, FunctionKey, Id);

/// The open sequences.
#[derive(Default)]
pub(crate) struct Sequences(Mutex<HashMap<Key, Sequence>>);

/// If there are at least this many sequences, entries whose sessions have expired are removed.
const FORGET_FROM: usize = 1024;

#[derive(Clone)]
struct Sequence {
    /// Its session, if the model keeps state.
    session: Option<SessionId>,
    /// Time of the last request, and how long the idle session is kept.
    used: Instant,
    idle: Duration,
    /// The instance under which it runs, unless its requests name one.
    instance: Option<String>,
    /// Held by the running request of the sequence; waiting requests get it in order of arrival.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Sequence {
    /// Whether no request runs or waits, and none came for the idle time.
    fn is_expired(&self) -> bool {
        Arc::strong_count(&self.turn) == 1 && self.used.elapsed() > self.idle
    }
}

impl Sequences {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, Sequence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the request may run.
    pub(crate) async fn turn<'e>(
        self: &Arc<Sequences>,
        engine: &'e Arc<dyn Inference>,
        model: &Model,
        tenant: &Tenant,
        place: Place,
    ) -> Result<Turn<'e>, InvokeError> {
        let key = (tenant.clone(), model.key.clone(), place.id);
        if place.starts {
            self.start(engine, model, &key)?;
        }
        // The engine says whether a session has expired.
        let exists = |sequence: &&mut Sequence| sequence.session.is_some() || !sequence.is_expired();
        let found = self.all().get_mut(&key).filter(exists).map(|sequence| {
            sequence.used = Instant::now();
            sequence.clone()
        });
        let sequence = found.ok_or_else(|| {
            InvokeError::BadInput(format!(
                "model `{}` has no open sequence {}; begin one with sequence_start (a sequence ends with sequence_end, \
                or after {} ms without a request)",
                model.name,
                key.2,
                model.session_idle().as_millis()
            ))
        })?;
        let turn = Arc::clone(&sequence.turn).lock_owned().await;
        let ends = place.ends || place.starts;
        Ok(Turn {
            sequences: Arc::clone(self),
            engine,
            key,
            session: sequence.session,
            ends,
            place_ends: place.ends,
            turn,
        })
    }

    /// Whether an open sequence runs under an instance of a function.
    pub(crate) fn run_under(&self, function: &FunctionKey, instance: &str) -> bool {
        let runs_there = |sequence: &Sequence| sequence.instance.as_deref() == Some(instance) && !sequence.is_expired();
        self.all().iter().any(|((_, of, _), sequence)| of == function && runs_there(sequence))
    }

    fn start(&self, engine: &Arc<dyn Inference>, model: &Model, key: &Key) -> Result<(), InvokeError> {
        let (used, idle) = (Instant::now(), model.session_idle());
        // The engine limits the sessions.
        let session = model.keeps_state().then(|| engine.open_session(&model.key, idle)).transpose()?;
        let sequence = Sequence { session, used, idle, instance: None, turn: Arc::default() };
        let mut all = self.all();
        if all.len() >= FORGET_FROM {
            all.retain(|_, known| !known.is_expired());
            let of_tenant = all.keys().filter(|(tenant, ..)| *tenant == key.0).count();
            if session.is_none() && of_tenant >= SESSIONS_PER_TENANT_MAX {
                return Err(InvokeError::TooManySessions { limit: SESSIONS_PER_TENANT_MAX });
            }
        }
        let before = all.insert(key.clone(), sequence);
        drop(all);
        if let Some(session) = before.and_then(|before| before.session) {
            engine.close_session(session);
        }
        Ok(())
    }
}

/// A request's turn in its sequence. Dropping it lets the next request run.
pub(crate) struct Turn<'e> {
    sequences: Arc<Sequences>,
    engine: &'e Arc<dyn Inference>,
    key: Key,
    session: Option<SessionId>,
    /// Whether the sequence is removed after this turn: the request ends it, its first request has
    /// not succeeded yet, or its session does not exist any more.
    ends: bool,
    place_ends: bool,
    turn: OwnedMutexGuard<()>,
}

impl Turn<'_> {
    /// The device that holds the session.
    pub(crate) fn device(&self) -> Option<DeviceId> {
        self.session.map(|session| DeviceId::of_id(session.0))
    }

    /// The instance under which the sequence runs: its last one if `is_there` returns true for it,
    /// otherwise the one that `choose` returns.
    pub(crate) fn instance(
        &self,
        is_there: impl Fn(&str) -> bool,
        choose: impl FnOnce() -> Option<String>,
    ) -> Option<String> {
        let before = self.sequences.all().get(&self.key).filter(|it| self.is_of(it)).and_then(|it| it.instance.clone());
        let instance = before.filter(|name| is_there(name)).or_else(choose);
        if let Some(sequence) = self.sequences.all().get_mut(&self.key).filter(|it| self.is_of(it)) {
            sequence.instance.clone_from(&instance);
        }
        instance
    }

    /// Whether it is a turn of this sequence, and not of an earlier one with the same id.
    fn is_of(&self, sequence: &Sequence) -> bool {
        Arc::ptr_eq(&sequence.turn, OwnedMutexGuard::mutex(&self.turn))
    }

    /// Runs the request as a step of the session.
    pub(crate) async fn step(
        &mut self,
        permit: &Permit,
        request: ChainRequest,
    ) -> Result<InvocationResult, InvokeError> {
        let session = self.session.ok_or(InvokeError::NoSession)?;
        let result = invoke_by(self.engine, permit, request, move |engine, request, reply| {
            engine.submit_step(session, request, reply)
        })
        .await;
        self.note(&result);
        result
    }

    /// Notes the result of the request, by which the sequence goes on or ends.
    pub(crate) fn note(&mut self, result: &Result<InvocationResult, InvokeError>) {
        match result {
            Ok(_) => self.ends = self.place_ends,
            Err(InvokeError::NoSession | InvokeError::SessionLost) => self.ends = true,
            Err(_) => {}
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.ends {
            return;
        }
        let mut all = self.sequences.all();
        // The same id may already name a newer sequence.
        if all.get(&self.key).is_some_and(|sequence| self.is_of(sequence)) {
            all.remove(&self.key);
        }
        drop(all);
        if let Some(session) = self.session {
            self.engine.close_session(session);
        }
    }
}
