//! The ledger of a lane: its clients with shares, their use and their tokens.

mod lanes;

use super::account::Account;
use super::client::{Client, ShareState, State};
use super::rules::{Charge, Decision, Finding, Round, Standing, Token};
use super::share::{Ppm, ShareError, ShareSpec, Span, Units, check_lane};
use super::{BusyTime, CLIENTS_MAX, TokenConfig};
use crate::ids::{Class, ClientId, Nanos};

/// The clients of a lane that have shares. Deterministic: the same calls give the same tokens.
#[derive(Debug)]
pub struct TokenLedger {
    config: TokenConfig,
    /// By id.
    clients: Vec<Client>,
    /// Whether a client began or ceased to want a token, or compute units became free, since the
    /// last decision.
    is_stale: bool,
    /// Whether clients are in more than one group. May stay set after clients were removed.
    has_groups: bool,
    /// When [`TokenLedger::grant`] is due if no event comes first.
    due: Option<u64>,
    /// Whether tokens were given or ended since [`TokenLedger::take_changed`].
    is_changed: bool,
    standings: Vec<Standing>,
    decisions: Vec<Decision>,
    spans: Vec<Span>,
}

impl TokenLedger {
    /// A ledger without clients.
    pub fn new(config: TokenConfig) -> TokenLedger {
        TokenLedger {
            config,
            clients: Vec::new(),
            is_stale: false,
            has_groups: false,
            due: None,
            is_changed: false,
            standings: Vec::new(),
            decisions: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Whether no client has a share.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// How many clients have shares.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    // Shares.

    /// Sets or changes the share of a client. New quotas take effect at once, a new partition with
    /// the next token.
    ///
    /// # Errors
    /// If the lane cannot honour its shares together with this one, or has [`CLIENTS_MAX`] clients
    /// already. On error nothing has changed.
    pub fn set(&mut self, now: Nanos, client: ClientId, share: ShareSpec) -> Result<(), ShareError> {
        let others = self.clients.iter().filter(|other| other.id != client && !other.is_removed);
        let shares: Vec<ShareSpec> = others.map(|other| other.share).chain([share]).collect();
        check_lane(&shares)?;
        if shares.len() > CLIENTS_MAX {
            return Err(ShareError::Clients(CLIENTS_MAX));
        }
        self.put(now, client, share);
        Ok(())
    }

    /// Sets the number of launches in flight of a client that issued them before it had a share.
    pub(crate) fn count_in_flight(&mut self, now: Nanos, client: ClientId, launches: u32) {
        let Ok(at) = self.place_of(client) else { return };
        (self.clients[at].in_flight, self.clients[at].active_since) = (launches, now.0);
    }

    fn put(&mut self, now: Nanos, client: ClientId, share: ShareSpec) {
        self.is_stale = true;
        match self.place_of(client) {
            Ok(at) => {
                self.clients[at].set_share(share, self.config.window);
                self.clients[at].is_removed = false;
            }
            Err(at) => self.clients.insert(at, Client::new(now, client, share, self.config.window)),
        }
        let first = self.clients[0].share.group;
        self.has_groups = self.clients.iter().any(|client| client.share.group != first);
    }

    /// Removes the share of a client; `false` if it has none. If the client has launches on the
    /// device, it is appended to `recalled`, and the caller tells the launches to exit. They occupy
    /// the partition until they have ended, and the client issues no others before that.
    pub fn remove(&mut self, now: Nanos, client: ClientId, recalled: &mut Vec<ClientId>) -> bool {
        let Ok(at) = self.place_of(client) else { return false };
        self.is_stale = true;
        if self.clients[at].is_removed {
            return false;
        }
        self.clients[at].is_removed = true;
        self.end(now, at, true, recalled);
        self.forget_removed(at);
        true
    }

    /// Copies the shares of the clients and their accounts to the ledger of another lane. Clients
    /// that have a share there keep it.
    pub(crate) fn hand_over(&self, to: &mut TokenLedger, now: Nanos) {
        for client in self.clients.iter().filter(|client| !client.is_removed) {
            if to.place_of(client.id).is_err() {
                to.put(now, client.id, client.share);
                let at = to.place_of(client.id).expect("it was put there");
                let taken_over = &mut to.clients[at];
                (taken_over.account, taken_over.asked) = (client.account, client.asked);
                (taken_over.received, taken_over.padded) = (client.received, client.padded);
            }
        }
    }

    /// The state of each client that has a share.
    pub fn shares(&self, now: Nanos) -> impl Iterator<Item = ShareState> {
        self.clients.iter().map(move |client| ShareState {
            client: client.id,
            share: client.share,
            has_token: matches!(client.state, State::Running(_)),
            token_until: if let State::Running(token) = client.state { Some(Nanos(token.until)) } else { None },
            is_draining: matches!(client.state, State::Draining(_)),
            occupied: Ppm::of_millionths(client.occupied().part),
            occupied_span: client.occupied().span,
            used_ns: self.used(client, now.0),
            asked_ns: self.asked(client, now.0),
            received_ns: client.received,
            tokens: client.tokens,
            recalls: client.recalls,
        })
    }

    // The gate.

    /// Whether a client may issue launches of a class now.
    pub fn may_issue(&self, now: Nanos, client: ClientId, class: Class) -> bool {
        let Ok(at) = self.place_of(client) else { return true };
        match self.clients[at].state {
            State::Running(token) => now.0 < token.until && (class == token.class || token.class == Class::BestEffort),
            _ => false,
        }
    }

    /// Whether a client may begin a task: it has a token, or may get one in this window.
    pub fn may_begin(&self, now: Nanos, client: ClientId, class: Class) -> bool {
        let Ok(at) = self.place_of(client) else { return true };
        let client = &self.clients[at];
        !client.is_removed && self.standing(at, now.0).remaining(class) > 0
    }

    /// The partition of a client; the whole lane if it has no share.
    pub fn partition_of(&self, client: ClientId) -> Ppm {
        self.place_of(client).map_or(Ppm::WHOLE, |at| self.clients[at].share.partition)
    }

    /// The share of a client.
    pub fn share_of(&self, client: ClientId) -> Option<ShareSpec> {
        self.place_of(client).ok().map(|at| self.clients[at].share)
    }

    /// Whether the token of a client is over and launches of it have not ended.
    pub fn is_draining(&self, client: ClientId) -> bool {
        self.place_of(client).is_ok_and(|at| matches!(self.clients[at].state, State::Draining(_)))
    }

    /// Whether a client has a share.
    pub fn has(&self, client: ClientId) -> bool {
        self.place_of(client).is_ok()
    }

    /// When [`TokenLedger::grant`] is due if no event comes first.
    pub fn next_grant(&self) -> Option<Nanos> {
        self.due.map(Nanos)
    }

    /// The part of the lane's compute units that tokens, and launches of ended tokens, occupy, in
    /// millionths.
    pub fn occupied(&self) -> u32 {
        self.clients.iter().map(|client| client.occupied().part).sum()
    }

    // What clients want and do.

    /// A launch of a client was issued.
    pub fn issued(&mut self, now: Nanos, client: ClientId) {
        let Ok(at) = self.place_of(client) else { return };
        let client = &mut self.clients[at];
        if client.in_flight == 0 {
            client.active_since = now.0;
        }
        client.in_flight += 1;
    }

    /// A launch of a client ended. Charges the time that it kept the device busy. If the device did
    /// not measure it, charges the time since the client's previous launch ended, or since this one
    /// was issued if the client had none in flight.
    pub fn ended(&mut self, now: Nanos, client: ClientId, busy: Option<BusyTime>) {
        let Ok(at) = self.place_of(client) else { return };
        let client = &mut self.clients[at];
        // Launches that were issued before the share was set are not counted.
        if client.in_flight == 0 {
            return;
        }
        client.in_flight -= 1;
        let (from, to) = busy.map_or((client.active_since, now.0), |busy| (busy.began().0, busy.ended.0.min(now.0)));
        client.charge(from, to, &self.config);
        client.active_since = now.0;
        if client.in_flight == 0 && (client.is_removed || matches!(client.state, State::Draining(_))) {
            client.state = State::Idle;
            self.is_stale = true;
            self.forget_removed(at);
        }
    }

    /// Charges a client `ns` nanoseconds of device time that its blocks used in launches of other
    /// clients, with which they were co-scheduled.
    pub fn charge(&mut self, now: Nanos, client: ClientId, ns: u64) {
        if let Ok(at) = self.place_of(client) {
            self.clients[at].charge_padding(now.0, ns, self.config.window);
        }
    }

    /// The time that [`TokenLedger::charge`] has charged to a client since the last call.
    pub(crate) fn take_padded(&mut self, client: ClientId) -> u64 {
        self.place_of(client).map_or(0, |at| std::mem::take(&mut self.clients[at].padded))
    }

    /// The device was lost: no client has launches in flight any more.
    pub fn lose_device(&mut self) {
        self.clients.retain(|client| !client.is_removed);
        for client in &mut self.clients {
            (client.in_flight, client.state, client.wants) = (0, State::Idle, None);
            client.wants_in.clear();
        }
        self.due = None;
    }

    // Tokens.

    /// Ends and gives tokens. Appends to `recalled` the clients whose launches on the device must
    /// be told to exit. Returns whether a token was given.
    pub fn grant(&mut self, now: Nanos, recalled: &mut Vec<ClientId>) -> bool {
        for at in 0..self.clients.len() {
            self.note_want(at, now.0);
        }
        if !self.is_stale && self.due.is_none_or(|due| now.0 < due) {
            return false;
        }
        let is_given = self.grant_once(now, recalled);
        // A client whose partition changed has returned its token and may get a new one.
        (self.is_stale && self.grant_once(now, recalled)) || is_given
    }

    fn grant_once(&mut self, now: Nanos, recalled: &mut Vec<ClientId>) -> bool {
        self.is_stale = false;
        let window = self.config.window;
        let mut spans = std::mem::take(&mut self.spans);
        spans.clear();
        spans.extend(self.clients.iter().filter_map(|client| client.draining().span));
        let round = Round {
            now: now.0,
            window_ends: Account::opened(now, window).ends(window),
            min_token: self.config.min_token,
            max_token: self.config.max_token(),
            draining: self.clients.iter().map(|client| client.draining().part).sum(),
            draining_spans: &spans,
        };
        let (mut standings, mut decisions) = (std::mem::take(&mut self.standings), std::mem::take(&mut self.decisions));
        standings.clear();
        decisions.clear();
        self.list_standings(now.0, &mut standings);
        (self.config.rule.plan)(&round, &mut standings, &mut decisions);
        self.due = None;
        let mut is_given = false;
        self.is_changed |= !decisions.is_empty();
        for decision in &decisions {
            match *decision {
                Decision::End { at } => self.end(now, at, self.config.rule.drains, recalled),
                Decision::Grant { at, class, until } => {
                    self.give(at, Token { class, since: now.0, until, units: Units::default() });
                    is_given = true;
                }
                Decision::Again { at_ns } => self.due = Some(at_ns),
            }
        }
        self.due = self.due.into_iter().chain(self.next_change(&standings, now.0)).min();
        (self.standings, self.decisions, self.spans) = (standings, decisions, spans);
        is_given
    }

    /// Notes whether a client began or ceased to want a token.
    fn note_want(&mut self, at: usize, now: u64) {
        let charge = self.config.rule.charge;
        let client = &mut self.clients[at];
        if client.wants == client.wanted {
            return;
        }
        self.is_stale = true;
        if charge == Charge::Given && client.wanted.is_none() {
            // A client that wants a token again ends its last one.
            client.given.cut(now);
            if matches!(client.state, State::Running(_)) {
                client.state = State::Idle;
            }
        }
        if self.config.rule.drains && client.wants.is_none() && matches!(client.state, State::Running(_)) {
            client.state = if client.in_flight > 0 { State::Draining(client.occupied()) } else { State::Idle };
        }
        client.wanted = client.wants;
    }

    fn list_standings(&self, now: u64, standings: &mut Vec<Standing>) {
        for (at, client) in self.clients.iter().enumerate() {
            let takes_part = !client.is_removed
                && match client.state {
                    State::Idle => client.wants.is_some(),
                    State::Running(_) => true,
                    State::Draining(_) => false,
                };
            if takes_part {
                standings.push(self.standing(at, now));
            }
        }
        if self.has_groups {
            self.note_groups(standings, now);
        }
    }

    /// Notes which groups use less than the sum of their clients' requests. Not needed with a
    /// single group, since lent time prefers no client there.
    fn note_groups(&self, standings: &mut [Standing], now: u64) {
        let mut groups: Vec<(u32, u64, u64)> = Vec::new();
        for client in self.clients.iter().filter(|client| !client.is_removed) {
            let (group, used) = (client.share.group, self.used(client, now));
            let request = client.request;
            match groups.iter_mut().find(|other| other.0 == group) {
                Some((_, sum, requests)) => {
                    (*sum, *requests) = (sum.saturating_add(used), requests.saturating_add(request));
                }
                None => groups.push((group, used, request)),
            }
        }
        for standing in standings {
            let group = self.clients[standing.at].share.group;
            standing.group_lends = groups.iter().any(|&(other, used, requested)| other == group && used < requested);
        }
    }

    fn standing(&self, at: usize, now: u64) -> Standing {
        let client = &self.clients[at];
        let limit = client.limit;
        let token = if let State::Running(token) = client.state { Some(token) } else { None };
        Standing {
            at,
            client: client.id,
            wants: client.wants,
            units: client.units(),
            request: client.request,
            limit,
            debt_max: limit.saturating_mul(self.config.debt_windows.into()),
            used: self.used(client, now),
            asked: self.asked(client, now),
            is_in_flight: client.in_flight > 0,
            token,
            group_lends: false,
            finding: Finding::Rest,
        }
    }

    fn give(&mut self, at: usize, token: Token) {
        let client = &mut self.clients[at];
        let token = match client.state {
            State::Running(old) => Token { since: old.since, units: old.units, ..token },
            _ => Token { units: client.units(), ..token },
        };
        if !matches!(client.state, State::Running(_)) || self.config.rule.charge == Charge::Given {
            client.tokens += 1;
        }
        if self.config.rule.charge == Charge::Given {
            client.given.forget_before(token.since.saturating_sub(self.config.window));
            client.given.push(token.since, token.until);
        }
        client.state = State::Running(token);
        client.ended_at = u64::MAX;
    }

    fn end(&mut self, now: Nanos, at: usize, drains: bool, recalled: &mut Vec<ClientId>) {
        let client = &mut self.clients[at];
        let State::Running(token) = client.state else { return };
        if client.in_flight > 0 && drains {
            client.recalls += 1;
            client.ended_at = now.0;
            client.state = State::Draining(token.units);
            recalled.push(client.id);
            self.is_changed = true;
        } else {
            client.state = State::Idle;
            self.is_stale |= token.units != client.units();
        }
    }

    /// When the next token expires, or a client that has used up its limit may get a token again.
    fn next_change(&self, standings: &[Standing], now: u64) -> Option<u64> {
        let expiries = self.clients.iter().filter_map(|client| match client.state {
            State::Running(token) => Some(token.until).filter(|until| *until > now),
            _ => None,
        });
        let again = standings.iter().filter_map(|standing| self.may_want_again_at(standing, now));
        expiries.chain(again).min()
    }

    /// When a client that wants a token but has used up its limit may get one; `None` for other
    /// clients.
    fn may_want_again_at(&self, standing: &Standing, now: u64) -> Option<u64> {
        let client = &self.clients[standing.at];
        let class = standing.wants.filter(|class| standing.remaining(*class) == 0 && client.state == State::Idle)?;
        let window = self.config.window;
        let again = match self.config.rule.charge {
            Charge::Given => client.given.falls_below_at(now, window, standing.limit),
            Charge::Measured => {
                let debt = if class == Class::RealTime { standing.debt_max } else { 0 };
                self.account(client, now).pays_off_at(window, standing.limit, debt)
            }
        };
        Some(again.max(now + 1))
    }

    // Accounts.

    /// The account of a client. Launches in flight count as if they had kept the device busy since
    /// the last charge.
    fn account(&self, client: &Client, now: u64) -> Account {
        let (window, limit) = (self.config.window, client.limit);
        if client.in_flight > 0 {
            client.account.charged(client.active_since, now, window, limit).at(now, window, limit)
        } else {
            client.account.at(now, window, limit)
        }
    }

    fn used(&self, client: &Client, now: u64) -> u64 {
        match self.config.rule.charge {
            Charge::Measured => self.account(client, now).used(),
            Charge::Given => client.given.used(now, self.config.window),
        }
    }

    fn asked(&self, client: &Client, now: u64) -> u64 {
        let (window, request) = (self.config.window, client.request);
        match self.config.rule.charge {
            Charge::Given => self.used(client, now),
            Charge::Measured if client.in_flight > 0 => {
                let asked = client.asked.charged(client.active_since, now, client.ended_at, window, request);
                asked.at(now, window, request).used()
            }
            Charge::Measured => client.asked.at(now, window, request).used(),
        }
    }

    fn place_of(&self, client: ClientId) -> Result<usize, usize> {
        self.clients.binary_search_by_key(&client, |client| client.id)
    }

    fn forget_removed(&mut self, at: usize) {
        let client = &self.clients[at];
        if client.is_removed && client.in_flight == 0 {
            self.clients.remove(at);
        }
    }
}
