//! The pool: state, and what follows from each event.

use super::{PoolAction, PoolConfig, PoolEvent};
use crate::ids::Nanos;

/// All devices, and one queue in front of them. See the [module](super).
pub struct Pool {
    config: PoolConfig,
}

impl Pool {
    /// A pool without devices and functions. `Err` names the known policies if
    /// [`PoolConfig::policy`] is none of them.
    pub fn new(config: PoolConfig) -> Result<Pool, String> {
        Ok(Pool { config })
    }

    /// Takes an event in and appends all actions that follow. `now` must not go back.
    pub fn handle(&mut self, now: Nanos, event: PoolEvent, actions: &mut Vec<PoolAction>) {
        self.note(now, event, actions);
        self.decide(now, actions);
    }

    /// Takes an event in without placing waiting requests, so that several events of one moment are
    /// seen together. [`Pool::decide`] has to follow.
    pub fn note(&mut self, _now: Nanos, _event: PoolEvent, _actions: &mut Vec<PoolAction>) {
        let _ = &self.config;
        todo!()
    }

    /// Places waiting requests.
    pub fn decide(&mut self, _now: Nanos, _actions: &mut Vec<PoolAction>) {
        todo!()
    }

    /// The next time at which [`PoolEvent::Tick`] has to be sent if no other event comes before:
    /// the next deadline of a waiting request, or the arrival of an announced one.
    pub fn wakeup(&self) -> Option<Nanos> {
        todo!()
    }
}
