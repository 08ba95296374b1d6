//! The lanes of a ledger: each client's lane and compute units, and the classes of work that wait
//! in each lane.

use super::TokenLedger;
use crate::ids::{Class, ClientId, LaneId, Nanos};
use crate::tokens::client::{ShareState, State};
use crate::tokens::share::Span;

impl TokenLedger {
    /// Sets the lane of a client and the compute units to which it is bound. They take effect with
    /// its next token.
    pub fn bind(&mut self, client: ClientId, lane: LaneId, span: Option<Span>) {
        let Ok(at) = self.place_of(client) else { return };
        (self.clients[at].lane, self.clients[at].span) = (lane, span);
        self.is_stale = true;
    }

    /// The lane in which a client has its share.
    pub(crate) fn lane_of(&self, client: ClientId) -> Option<LaneId> {
        self.place_of(client).ok().map(|at| self.clients[at].lane)
    }

    /// Closes a lane: moves the shares of its clients to the default lane, without bound compute
    /// units.
    pub(crate) fn unbind_lane(&mut self, lane: LaneId) {
        for client in &mut self.clients {
            if client.lane == lane {
                (client.lane, client.span) = (LaneId::DEFAULT, None);
            }
            client.forget_wants(lane);
        }
        self.is_stale = true;
    }

    /// The clients that have their shares in a lane.
    pub(crate) fn shares_in(&self, now: Nanos, lane: LaneId) -> impl Iterator<Item = ShareState> {
        let lanes = self.clients.iter().map(|client| client.lane);
        self.shares(now).zip(lanes).filter(move |(_, other)| *other == lane).map(|(state, _)| state)
    }

    /// Whether a client is bound to compute units, so that several lanes use this ledger.
    pub(crate) fn has_bound_clients(&self) -> bool {
        self.clients.iter().any(|client| client.span.is_some())
    }

    /// The clients whose tokens have ended and whose launches have not.
    pub(crate) fn draining(&self) -> impl Iterator<Item = ClientId> {
        self.clients.iter().filter(|client| matches!(client.state, State::Draining(_))).map(|client| client.id)
    }

    /// Whether other lanes must decide again: tokens were given or ended since the last call, or
    /// compute units became free in a closing lane, which gives no tokens.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed) || self.is_stale
    }

    /// Whether [`TokenLedger::take_changed`] would be true.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed || self.is_stale
    }

    // What clients want.

    /// Begins a new list of the clients that want to issue. A call of [`TokenLedger::want`] follows
    /// for each client.
    pub fn begin_wants(&mut self) {
        self.begin_wants_in(LaneId::DEFAULT);
    }

    /// Like [`TokenLedger::begin_wants`], for the tasks of one lane.
    pub(crate) fn begin_wants_in(&mut self, lane: LaneId) {
        for client in &mut self.clients {
            client.wanted = client.wants;
            client.forget_wants(lane);
        }
    }

    /// A client wants to issue work of a class.
    pub fn want(&mut self, client: ClientId, class: Class) {
        self.want_in(LaneId::DEFAULT, client, class);
    }

    /// Like [`TokenLedger::want`], for a task of one lane.
    pub(crate) fn want_in(&mut self, lane: LaneId, client: ClientId, class: Class) {
        let Ok(at) = self.place_of(client) else { return };
        let client = &mut self.clients[at];
        match client.wants_in.iter_mut().find(|(other, _)| *other == lane) {
            Some((_, wants)) => *wants = class.min(*wants),
            None => client.wants_in.push((lane, class)),
        }
        client.wants = Some(client.wants.map_or(class, |other| other.min(class)));
    }
}
