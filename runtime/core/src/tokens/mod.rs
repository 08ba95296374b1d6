//! Tokens divide the device time of a lane among its clients (after FaST-GShare §3.3.2, corrected).
//!
//! A client with a share has a *partition* of its lane's compute units and two fractions of time.
//! It gets its *request* in every *window* in which it has work, and never more than its *limit*.
//! To issue launches a client needs a *token*. Several clients have tokens at the same time if
//! their partitions fit into the lane together.
//!
//! Use is measured: a launch that ends is charged to its client with the time that it kept the
//! device busy. When a token ends, the scheduler raises the epoch of the client's running tasks:
//! they stop at the next block boundary and continue with the next token. The partition is free
//! once the launches have ended. Use beyond the limit is debt, which the following windows pay.
//!
//! A client may be bound to certain compute units: those of its lane, if the lane has joined the
//! ledger of the device. Clients whose units overlap never have tokens at the same time.
//!
//! Clients without a share may issue at any time. `docs/decisions/0072-shares.md` has the reasons.
//!
//! - `share.rs`: shares and their checks
//! - `account.rs`: the device time that a client used, by window
//! - `rules.rs`: which client gets a token and for how long; the table of rules
//! - `client.rs` and `ledger.rs`: the state of a lane's clients

mod account;
mod client;
mod ledger;
mod rules;
mod share;

pub use client::ShareState;
pub use ledger::TokenLedger;
pub use rules::{RULES, Rule, rule_by_name};
pub(crate) use share::check_lane;
pub use share::{Ppm, ShareError, ShareRequest, ShareSpec, Span};

use crate::ids::Nanos;
use std::fmt;

/// Clients with shares in one lane. A decision examines all of them, so this bounds its time.
pub const CLIENTS_MAX: usize = 256;

/// The default window: 40 ms, as in FaST-GShare's launcher.
pub const WINDOW_NS_DEFAULT: u64 = 40_000_000;

/// A token lasts at least as long as this many launches, so that the launches at its start and end
/// cost at most a twentieth of it.
pub const MIN_TOKEN_LAUNCHES: u64 = 20;

/// A token lasts at most the window divided by this, so that clients do not wait a whole window for
/// their turn.
const TOKENS_PER_WINDOW: u64 = 4;

/// When a launch kept the device busy, measured by the device. Launches may be reported late and
/// several at once; their time is charged to the windows in which it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyTime {
    /// When the launch ended.
    pub ended: Nanos,
    /// How long it kept the device busy before that, in nanoseconds.
    pub ns: u64,
}

impl BusyTime {
    /// When the launch began, if it kept the device busy without a break.
    pub fn began(&self) -> Nanos {
        Nanos(self.ended.0.saturating_sub(self.ns))
    }
}

/// The settings of tokens, checked. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct TokenConfig {
    pub(crate) rule: &'static Rule,
    window: u64,
    min_token: u64,
    debt_windows: u32,
}

/// Why settings of tokens are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenConfigError {
    /// The window is 0.
    NoWindow,
    /// The shortest token is 0, or longer than a quarter of the window.
    MinToken {
        /// The shortest token, in nanoseconds.
        min_token_ns: u64,
        /// The window, in nanoseconds.
        window_ns: u64,
    },
}

impl fmt::Display for TokenConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenConfigError::NoWindow => f.write_str("a token window of 0 ns; it must be longer"),
            TokenConfigError::MinToken { min_token_ns, window_ns } => write!(
                f,
                "a shortest token of {min_token_ns} ns; it must be above 0 and at most a quarter of the window \
                 of {window_ns} ns"
            ),
        }
    }
}

impl std::error::Error for TokenConfigError {}

impl TokenConfig {
    /// The rule `atoll` with the default window, for a device on which a launch costs `launch_ns`.
    pub fn for_device(launch_ns: u64) -> TokenConfig {
        let window = WINDOW_NS_DEFAULT;
        let min_token = launch_ns.saturating_mul(MIN_TOKEN_LAUNCHES).clamp(1_000, window / TOKENS_PER_WINDOW);
        TokenConfig { rule: &RULES[0], window, min_token, debt_windows: 1 }
    }

    /// Sets the window and the shortest token, both in nanoseconds.
    ///
    /// # Errors
    /// If the window is 0, or the shortest token is 0 or exceeds a quarter of the window.
    pub fn with_window(self, window_ns: u64, min_token_ns: u64) -> Result<TokenConfig, TokenConfigError> {
        if window_ns == 0 {
            return Err(TokenConfigError::NoWindow);
        }
        if min_token_ns == 0 || min_token_ns > window_ns / TOKENS_PER_WINDOW {
            return Err(TokenConfigError::MinToken { min_token_ns, window_ns });
        }
        Ok(TokenConfig { window: window_ns, min_token: min_token_ns, ..self })
    }

    /// Sets the rule.
    #[must_use]
    pub fn with_rule(self, rule: &'static Rule) -> TokenConfig {
        TokenConfig { rule, ..self }
    }

    /// Sets how far real-time work may exceed the limit of a window: by this many times the limit,
    /// which later windows pay.
    #[must_use]
    pub fn with_debt_windows(self, debt_windows: u32) -> TokenConfig {
        TokenConfig { debt_windows, ..self }
    }

    /// The window, in nanoseconds.
    pub fn window_ns(&self) -> u64 {
        self.window
    }

    /// The shortest token, in nanoseconds.
    pub fn min_token_ns(&self) -> u64 {
        self.min_token
    }

    fn max_token(&self) -> u64 {
        (self.window / TOKENS_PER_WINDOW).max(self.min_token)
    }
}
