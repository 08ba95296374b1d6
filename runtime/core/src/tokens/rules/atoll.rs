//! Atoll's own rule.
//!
//! Clients are ordered: real-time work first; then clients below their request, ordered by the used
//! part of the request; then clients beyond it (their time is *lent*), of which those that run keep
//! running and groups that use less than they request come first. Tokens are given in this order
//! while the partitions fit. They fit if their sum is at most the lane, and no two clients are
//! bound to the same compute unit. A client below its request that does not fit reserves a start
//! time: clients behind it get tokens only if these end before that time (EASY backfilling). A lent
//! token ends as soon as a client below its request needs its compute units; other best-effort
//! tokens end early only for real-time work.

use super::{Decision, Finding, Round, Standing, Units, WHOLE};
use crate::ids::Class;

pub(super) fn plan(round: &Round<'_>, clients: &mut [Standing], decisions: &mut Vec<Decision>) {
    sort(round, clients);
    let mut commitments = vec![(round.now, Units { part: round.draining, span: None })];
    commitments.extend(round.draining_spans.iter().map(|span| (round.now, Units { part: 0, span: Some(*span) })));
    let mut plan = Plan { round, commitments, taken: round.draining, reserved: None };
    for client in clients.iter_mut().filter(|client| is_firm(round, client)) {
        client.finding = Finding::Firm;
        plan.commit(client, firm_until(round, client));
    }
    let mut grants = Vec::with_capacity(clients.len());
    for at in 0..clients.len() {
        let client = clients[at];
        if client.finding != Finding::Rest {
            continue;
        }
        // A token is not extended after its partition changed: the next token has the new one.
        let is_resized = client.token.is_some_and(|token| token.units != client.units);
        let class = client.wants.filter(|class| client.remaining(*class) > 0 && !is_resized);
        if class == Some(Class::RealTime) {
            plan.take_back(clients, held(&client));
        }
        match (class, class.and_then(|class| plan.token(&client, class))) {
            (Some(class), Some(until)) => {
                plan.commit(&client, until);
                grants.push((at, class, until));
            }
            _ if client.token.is_some() => clients[at].finding = Finding::Over,
            _ => {}
        }
    }
    if plan.reserved.is_some() {
        decisions.extend(next_return(round, clients));
    }
    carry_out(round, clients, &grants, decisions);
}

/// Sorts the clients by [`rank`]. Sorting small keys is cheaper than moving clients around.
fn sort(round: &Round<'_>, clients: &mut [Standing]) {
    let key = |(at, client): (usize, &Standing)| {
        let (tier, is_behind, used_part) = rank(round, client);
        let key = u128::from(tier) << 97 | u128::from(is_behind) << 96 | u128::from(used_part) << 32;
        (key | u128::from(client.client.0), at)
    };
    let mut order: Vec<(u128, usize)> = clients.iter().enumerate().map(key).collect();
    order.sort_unstable();
    let sorted: Vec<Standing> = order.into_iter().map(|(_, at)| clients[at]).collect();
    clients.copy_from_slice(&sorted);
}

/// Ends tokens, and gives the planned tokens whose compute units are free now. The other planned
/// tokens are given later, once the launches of ended tokens have ended.
fn carry_out(round: &Round<'_>, clients: &[Standing], grants: &[(usize, Class, u64)], decisions: &mut Vec<Decision>) {
    let over = clients.iter().filter(|client| client.finding == Finding::Over);
    decisions.extend(over.map(|client| Decision::End { at: client.at }));
    let occupies =
        |client: &&Standing| client.token.is_some() && (client.is_in_flight || client.finding != Finding::Over);
    let mut occupied = round.draining + clients.iter().filter(occupies).map(|client| held(client).part).sum::<u32>();
    let mut spans: Vec<_> = clients.iter().filter(occupies).filter_map(|client| held(client).span).collect();
    spans.extend(round.draining_spans);
    for &(index, class, until) in grants {
        let client = &clients[index];
        if client.token.is_none() {
            let Units { part, span } = client.units;
            if occupied + part > WHOLE || span.is_some_and(|span| spans.iter().any(|other| span.overlaps(*other))) {
                continue;
            }
            occupied += part;
            spans.extend(span);
        }
        decisions.push(Decision::Grant { at: client.at, class, until });
    }
}

/// The compute units of a client's token, or of its next token if it has none.
fn held(client: &Standing) -> Units {
    client.token.map_or(client.units, |token| token.units)
}

/// Whether a token is firm: only real-time work may end it early. A token is firm if it is not
/// lent, or if it is younger than the shortest token.
fn is_firm(round: &Round<'_>, client: &Standing) -> bool {
    let Some(token) = client.token.filter(|token| token.until > round.now) else { return false };
    let is_new = round.now < token.since.saturating_add(round.min_token);
    client.wants == Some(token.class) && (is_promised(client, token.class) || is_new)
}

/// Whether a token of this class is promised to the client, and not lent.
fn is_promised(client: &Standing, class: Class) -> bool {
    class == Class::RealTime || client.is_below_request()
}

/// The time until which a firm token stays firm.
fn firm_until(round: &Round<'_>, client: &Standing) -> u64 {
    let Some(token) = client.token else { return round.now };
    match is_promised(client, token.class) {
        true => token.until,
        false => token.until.min(token.since.saturating_add(round.min_token)),
    }
}

/// A call for the time when the first firm lent token may be taken back.
fn next_return(round: &Round<'_>, clients: &[Standing]) -> Option<Decision> {
    let firm = clients.iter().filter(|client| client.finding == Finding::Firm);
    let lent = firm.filter(|client| client.token.is_some_and(|token| !is_promised(client, token.class)));
    lent.map(|client| firm_until(round, client)).min().map(|at_ns| Decision::Again { at_ns })
}

/// The sort key of a client. The id breaks ties.
fn rank(round: &Round<'_>, client: &Standing) -> (u8, bool, u64) {
    let tier = match client.wants {
        Some(Class::RealTime) => 0,
        _ if client.is_below_request() => 1,
        _ if client.runs(round.now) => 2,
        _ => 3,
    };
    // The used fraction of the request, in units of 2^-32.
    let used_part = match u32::try_from(client.asked) {
        Ok(asked) => (u64::from(asked) << 32) / client.request,
        Err(_) => {
            let used_part = (u128::from(client.asked) << 32) / u128::from(client.request);
            u64::try_from(used_part).unwrap_or(u64::MAX)
        }
    };
    (tier, tier == 3 && !client.group_lends, used_part)
}

struct Plan<'a> {
    round: &'a Round<'a>,
    /// Compute units that are taken, each with the time until which they are.
    commitments: Vec<(u64, Units)>,
    /// The sum of their parts of the lane, in millionths.
    taken: u32,
    /// When the first waiting client below its request can begin.
    reserved: Option<u64>,
}

impl Plan<'_> {
    fn commit(&mut self, client: &Standing, until: u64) {
        self.commitments.push((until, held(client)));
        self.taken += held(client).part;
    }

    /// Ends firm tokens of best-effort work, from the back of the order, until a partition fits.
    fn take_back(&mut self, clients: &mut [Standing], wanted: Units) {
        for client in clients.iter_mut().rev() {
            if self.has_room(wanted) {
                return;
            }
            let helps = self.taken + wanted.part > WHOLE || held(client).excludes(wanted);
            let is_best_effort = client.token.is_some_and(|token| token.class == Class::BestEffort);
            if client.finding == Finding::Firm && is_best_effort && helps {
                let entry = (firm_until(self.round, client), held(client));
                let at = self.commitments.iter().position(|other| *other == entry);
                self.taken -= self.commitments.swap_remove(at.expect("a firm token was committed")).1.part;
                client.finding = Finding::Over;
            }
        }
    }

    fn has_room(&self, wanted: Units) -> bool {
        let is_taken = |(_, units): &(u64, Units)| units.excludes(wanted);
        self.taken + wanted.part <= WHOLE && (wanted.span.is_none() || !self.commitments.iter().any(is_taken))
    }

    /// The end of a token that the client gets now; `None` if it gets none.
    fn token(&mut self, client: &Standing, class: Class) -> Option<u64> {
        let round = self.round;
        if !self.has_room(held(client)) {
            if is_promised(client, class) && self.reserved.is_none() {
                self.reserved = Some(self.fits_at(held(client)));
            }
            return None;
        }
        let budget = match class {
            Class::BestEffort if client.is_below_request() => client.request - client.asked,
            _ => client.remaining(class),
        };
        let shortest = round.now.saturating_add(round.min_token);
        let until = round.now.saturating_add(budget.min(round.max_token)).min(round.window_ends).max(shortest);
        // A running token that may continue is not extended before it expires.
        let running = client.token.filter(|token| token.until > round.now && token.class == class);
        let (until, shortest) = running.map_or((until, shortest), |token| (token.until, round.now + 1));
        Some(self.reserved.map_or(until, |reserved| until.min(reserved))).filter(|until| *until >= shortest)
    }

    /// The time at which enough commitments have ended for a partition to fit.
    fn fits_at(&self, wanted: Units) -> u64 {
        let mut ends = self.commitments.clone();
        ends.sort_unstable_by_key(|(until, units)| (*until, units.part));
        let mut taken = self.taken;
        for (at, (until, units)) in ends.iter().enumerate() {
            taken -= units.part;
            let is_free = || !ends[at + 1..].iter().any(|(_, later)| later.excludes(wanted));
            if taken + wanted.part <= WHOLE && is_free() {
                return *until;
            }
        }
        self.round.now
    }
}
