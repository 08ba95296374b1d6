//! A client of the ledger: its account and its token.

use super::TokenConfig;
use super::account::{Account, Asked, Given};
use super::rules::Token;
use super::share::{Ppm, ShareSpec, Span, Units};
use crate::ids::{Class, ClientId, LaneId, Nanos};

/// A client as reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareState {
    /// The client.
    pub client: ClientId,
    /// Its share.
    pub share: ShareSpec,
    /// Whether it has a token.
    pub has_token: bool,
    /// When the token expires.
    pub token_until: Option<Nanos>,
    /// Whether its token is over and launches of it have not ended.
    pub is_draining: bool,
    /// The compute units of its token, or of launches of a token that is over.
    pub occupied: Ppm,
    /// Which ones, if they are certain ones.
    pub occupied_span: Option<Span>,
    /// Use of the current window that counts against the limit, debt included, in nanoseconds.
    pub used_ns: u64,
    /// Use of the current window that counts against the request, in nanoseconds.
    pub asked_ns: u64,
    /// Charged since the share was set, in nanoseconds.
    pub received_ns: u64,
    /// Tokens it was given.
    pub tokens: u64,
    /// Tokens that ended while launches of it were on the device.
    pub recalls: u64,
}

/// A client of the ledger.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) share: ShareSpec,
    /// The lane in which it has the share, and the compute units of that lane if it is bound to
    /// them.
    pub(super) lane: LaneId,
    pub(super) span: Option<Span>,
    /// The request and the limit of a window, at least 1 ns.
    pub(super) request: u64,
    pub(super) limit: u64,
    pub(super) account: Account,
    pub(super) asked: Asked,
    /// When its last token ended; launches that end later overran it.
    pub(super) ended_at: u64,
    pub(super) given: Given,
    pub(super) state: State,
    /// The share was removed while launches were on the device.
    pub(super) is_removed: bool,
    /// What its tasks want: the most urgent class of `wants_in`.
    pub(super) wants: Option<Class>,
    /// What its tasks want in each lane. They are in several lanes while it moves to another one.
    pub(super) wants_in: Vec<(LaneId, Class)>,
    pub(super) wanted: Option<Class>,
    pub(super) in_flight: u32,
    /// Since when launches in flight have not been charged.
    pub(super) active_since: u64,
    /// The launch time charged last, as one interval.
    pub(super) charged: (u64, u64),
    pub(super) received: u64,
    pub(super) tokens: u64,
    pub(super) recalls: u64,
}

/// Whether it has a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Running(Token),
    /// The token is over, and launches of it occupy these compute units.
    Draining(Units),
}

impl Client {
    pub(super) fn new(now: Nanos, id: ClientId, share: ShareSpec, window: u64) -> Client {
        let (request, limit) = of_window(share, window);
        Client {
            id,
            share,
            lane: LaneId::DEFAULT,
            span: None,
            request,
            limit,
            account: Account::opened(now, window),
            asked: Asked::opened(now, window),
            ended_at: u64::MAX,
            given: Given::default(),
            state: State::Idle,
            is_removed: false,
            wants: None,
            wants_in: Vec::new(),
            wanted: None,
            in_flight: 0,
            active_since: 0,
            charged: (0, 0),
            received: 0,
            tokens: 0,
            recalls: 0,
        }
    }

    /// Changes the share.
    pub(super) fn set_share(&mut self, share: ShareSpec, window: u64) {
        self.share = share;
        (self.request, self.limit) = of_window(share, window);
    }

    /// Charges a launch. Times in which launches of a client overlap count once, unless more than
    /// two overlap.
    pub(super) fn charge(&mut self, from: u64, to: u64, config: &TokenConfig) {
        let (window, limit, request) = (config.window, self.limit, self.request);
        let (start, end) = self.charged;
        let before = start.saturating_sub(from);
        let parts = if from >= end { [(from, to), (to, to)] } else { [(from, from + before), (end.min(to), to)] };
        for (from, to) in parts {
            if to > from {
                self.account = self.account.charged(from, to, window, limit);
                self.asked = self.asked.charged(from, to, self.ended_at, window, request);
                self.received += to - from;
            }
        }
        self.charged = if from > end { (from, to) } else { (from.min(start), to.max(end)) };
    }

    /// The compute units of its next token.
    pub(super) fn units(&self) -> Units {
        Units { part: self.share.partition().millionths(), span: self.span }
    }

    pub(super) fn draining(&self) -> Units {
        if let State::Draining(units) = self.state { units } else { Units::default() }
    }

    pub(super) fn occupied(&self) -> Units {
        match self.state {
            State::Idle => Units::default(),
            State::Running(token) => token.units,
            State::Draining(units) => units,
        }
    }

    /// The lane's part of what it wants is known anew; the other lanes' parts stay.
    pub(super) fn forget_wants(&mut self, lane: LaneId) {
        self.wants_in.retain(|(other, _)| *other != lane);
        self.wants = self.wants_in.iter().map(|(_, class)| *class).min();
    }
}

/// The request and the limit of a window.
fn of_window(share: ShareSpec, window: u64) -> (u64, u64) {
    (share.request.of(window).max(1), share.limit.of(window).max(1))
}
