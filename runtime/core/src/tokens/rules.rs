//! The rules that give tokens: Atoll's own, FaST-GShare's as its paper describes it, and
//! FaST-GShare's as its published code works. Each is a pure function over the clients of a lane.

mod atoll;
mod paper;
mod public;

use super::share::{Span, Units};
use crate::ids::{Class, ClientId};

/// One row of the table of rules.
#[derive(Debug)]
pub struct Rule {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// What counts as use.
    pub(super) charge: Charge,
    /// Whether launches are told to exit when their token ends, and keep its compute units occupied
    /// until they have ended. Otherwise the units are free when the token expires.
    pub(super) drains: bool,
    /// Appends the decisions about tokens to give and to end.
    pub(super) plan: fn(&Round<'_>, &mut [Standing], &mut Vec<Decision>),
}

/// How the use of a client is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// By the device time of its launches.
    Measured,
    /// By the full time of its tokens, from the moment they are given.
    Given,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "atoll",
        about: "measured use, debt for overuse; clients below their request go first and take lent time back at once",
        charge: Charge::Measured,
        drains: true,
        plan: atoll::plan,
    },
    Rule {
        name: "paper",
        about: "FaST-GShare §3.3.2: measured use, largest shortfall first, until the first that does not fit",
        charge: Charge::Measured,
        drains: false,
        plan: paper::plan,
    },
    Rule {
        name: "public",
        about: "FaST-GShare's published code: tokens charged in full, in a sliding window; a round may exceed 100 %",
        charge: Charge::Given,
        drains: false,
        plan: public::plan,
    },
];

/// The rule with a name.
pub fn rule_by_name(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

/// All compute units of a lane, in millionths.
pub(super) const WHOLE: u32 = 1_000_000;

/// The input of a rule besides the clients. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round<'a> {
    pub(super) now: u64,
    /// Start of the next window.
    pub(super) window_ends: u64,
    pub(super) min_token: u64,
    pub(super) max_token: u64,
    /// The part of the lane, in millionths, that launches of ended tokens occupy.
    pub(super) draining: u32,
    /// The compute units that launches of ended tokens of bound clients occupy.
    pub(super) draining_spans: &'a [Span],
}

/// A client that wants to issue or has a token. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Index of the client in the ledger.
    pub(super) at: usize,
    pub(super) client: ClientId,
    /// The class of its most urgent work; `None` if it has none.
    pub(super) wants: Option<Class>,
    /// The compute units of its next token.
    pub(super) units: Units,
    pub(super) request: u64,
    pub(super) limit: u64,
    /// How much real-time work may use beyond the limit.
    pub(super) debt_max: u64,
    /// Use that counts against the limit.
    pub(super) used: u64,
    /// Use that counts against the request.
    pub(super) asked: u64,
    pub(super) is_in_flight: bool,
    pub(super) token: Option<Token>,
    /// Whether the clients of its group together use less than they request.
    pub(super) group_lends: bool,
    /// The rule's own note about the token; [`Finding::Rest`] when the rule is called.
    pub(super) finding: Finding,
}

/// A note of a rule about the token of a client while it plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Finding {
    /// Neither kept nor ended so far.
    #[default]
    Rest,
    /// The token is kept.
    Firm,
    /// The token ends.
    Over,
}

/// The right to issue launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) class: Class,
    pub(super) since: u64,
    pub(super) until: u64,
    /// The compute units for which it was given. A changed partition takes effect with the next
    /// token.
    pub(super) units: Units,
}

/// A decision of a rule. `at` is the index of the client in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Gives a token, or extends the token that the client has.
    Grant { at: usize, class: Class, until: u64 },
    /// Ends a token.
    End { at: usize },
    /// Asks for a call at this time.
    Again { at_ns: u64 },
}

/// Ends the tokens that have expired. Returns the sum of the partitions of the other tokens.
fn end_expired(now: u64, clients: &[Standing], decisions: &mut Vec<Decision>) -> u32 {
    let mut running = 0;
    for client in clients.iter().filter(|client| client.token.is_some()) {
        if client.runs(now) {
            running += client.units.part;
        } else {
            decisions.push(Decision::End { at: client.at });
        }
    }
    running
}

impl Standing {
    /// Whether it has a token that has not expired.
    fn runs(&self, now: u64) -> bool {
        self.token.is_some_and(|token| token.until > now)
    }

    /// Whether it used less than it requests.
    fn is_below_request(&self) -> bool {
        self.asked < self.request
    }

    /// The time that it may still use in this window for work of a class.
    pub(super) fn remaining(&self, class: Class) -> u64 {
        let debt = if class == Class::RealTime { self.debt_max } else { 0 };
        self.limit.saturating_add(debt).saturating_sub(self.used)
    }
}
