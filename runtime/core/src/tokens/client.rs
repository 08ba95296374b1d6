//! A client of the ledger: its account and its token.

use super::TokenConfig;
use super::account::{Account, Asked, Given};
use super::rules::Token;
use super::share::{Ppm, ShareSpec, Span, Units};
use crate::ids::{Class, ClientId, LaneId, Nanos};

/// The state of a client, for reports.
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
    /// Whether its token has ended and launches issued under it have not.
    pub is_draining: bool,
    /// The compute units of its token, or of launches of an ended token.
    pub occupied: Ppm,
    /// The indices of these compute units, if the client is bound to them.
    pub occupied_span: Option<Span>,
    /// Use in the current window that counts against the limit, including debt, in nanoseconds.
    pub used_ns: u64,
    /// Use in the current window that counts against the request, in nanoseconds.
    pub asked_ns: u64,
    /// Device time charged since the share was set, in nanoseconds.
    pub received_ns: u64,
    /// Number of tokens it was given.
    pub tokens: u64,
    /// Number of tokens that ended while launches of the client were on the device.
    pub recalls: u64,
}

/// A client of the ledger.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) share: ShareSpec,
    /// The lane in which it has the share.
    pub(super) lane: LaneId,
    /// The compute units of that lane to which it is bound, if any.
    pub(super) span: Option<Span>,
    /// The request and the limit of a window, at least 1 ns.
    pub(super) request: u64,
    pub(super) limit: u64,
    pub(super) account: Account,
    pub(super) asked: Asked,
    /// When its last token ended; `u64::MAX` while it has one. Use after this time is overrun.
    pub(super) ended_at: u64,
    pub(super) given: Given,
    pub(super) state: State,
    /// The share was removed while launches were on the device.
    pub(super) is_removed: bool,
    /// The most urgent class of `wants_in`: the class that a token is wanted for.
    pub(super) wants: Option<Class>,
    /// The most urgent class of its waiting tasks in each lane. While a client moves to another
    /// lane, its tasks are in both.
    pub(super) wants_in: Vec<(LaneId, Class)>,
    /// The value of `wants` at the last decision.
    pub(super) wanted: Option<Class>,
    pub(super) in_flight: u32,
    /// The time up to which launches in flight have been charged.
    pub(super) active_since: u64,
    /// Start and end of the launch time charged last, as one interval.
    pub(super) charged: (u64, u64),
    pub(super) received: u64,
    /// Time of co-scheduled blocks that was charged and not yet taken by
    /// [`super::TokenLedger::take_padded`].
    pub(super) padded: u64,
    pub(super) tokens: u64,
    pub(super) recalls: u64,
}

/// Whether a client has a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Running(Token),
    /// The token has ended, and launches issued under it occupy these compute units.
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
            padded: 0,
            tokens: 0,
            recalls: 0,
        }
    }

    /// Changes the share.
    pub(super) fn set_share(&mut self, share: ShareSpec, window: u64) {
        self.share = share;
        (self.request, self.limit) = of_window(share, window);
    }

    /// Charges a launch. Time in which two launches of a client overlap counts once. If more than
    /// two overlap, some time may count twice.
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

    /// Charges `ns` nanoseconds of blocks that were co-scheduled in launches of others. They are no
    /// overrun, since they took no time from other clients.
    pub(super) fn charge_padding(&mut self, now: u64, ns: u64, window: u64) {
        let (limit, request, from) = (self.limit, self.request, now.saturating_sub(ns));
        self.account = self.account.at(now, window, limit).charged(from, now, window, limit);
        self.asked = self.asked.at(now, window, request).charged(from, now, u64::MAX, window, request);
        self.received += ns;
        self.padded += ns;
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

    /// Forgets what the client's tasks in one lane want; its tasks in other lanes still count.
    pub(super) fn forget_wants(&mut self, lane: LaneId) {
        self.wants_in.retain(|(other, _)| *other != lane);
        self.wants = self.wants_in.iter().map(|(_, class)| *class).min();
    }
}

/// The request and the limit of a window, in nanoseconds.
fn of_window(share: ShareSpec, window: u64) -> (u64, u64) {
    (share.request.of(window).max(1), share.limit.of(window).max(1))
}
