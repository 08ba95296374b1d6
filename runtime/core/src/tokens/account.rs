//! The device time that a client used, by window.

use crate::ids::Nanos;
use std::collections::VecDeque;

/// Use measured by the device, in consecutive windows. Use beyond the allowance of a window is
/// debt: it counts as use of the following windows until their allowances have paid it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// Start of the window, in nanoseconds.
    start: u64,
    /// Use within the window, including the debt from earlier windows.
    used: u64,
}

impl Account {
    pub(super) fn opened(now: Nanos, window: u64) -> Account {
        Account { start: now.0 - now.0 % window, used: 0 }
    }

    /// Use in the window of the account, including debt.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// The account at a later time, if nothing was used in between. `limit` is the allowance of a
    /// window.
    #[must_use]
    pub(super) fn at(self, now: u64, window: u64, limit: u64) -> Account {
        let since = now.saturating_sub(self.start);
        // Most calls are in the same window, and this avoids their costliest part, the division.
        if since < window {
            return self;
        }
        let windows = since / window;
        let paid = limit.saturating_mul(windows);
        Account { start: self.start + windows * window, used: self.used.saturating_sub(paid) }
    }

    /// Charges the time from `from` to `to`, each part to its window. Time before the account's
    /// window is charged to that window.
    #[must_use]
    pub(super) fn charged(self, from: u64, to: u64, window: u64, limit: u64) -> Account {
        let mut account = self.at(from, window, limit);
        account.used = account.used.saturating_add(account.start.saturating_sub(from).min(to.saturating_sub(from)));
        let from = from.max(account.start);
        if to <= from {
            return account;
        }
        let end = account.start + window;
        if to <= end {
            account.used = account.used.saturating_add(to - from);
            return account;
        }
        account.used = account.used.saturating_add(end - from);
        account = account.at(end, window, limit);
        // Windows that are used in full: each adds its use beyond the allowance to the debt.
        let whole = (to - end) / window;
        account.used = account.used.saturating_add(whole.saturating_mul(window.saturating_sub(limit)));
        account.start += whole * window;
        account.used = account.used.saturating_add(to - account.start);
        account
    }

    /// The start of the first window in which use is below the allowance plus `debt`. Meaningful
    /// only if use is not below it now.
    pub(super) fn pays_off_at(&self, window: u64, limit: u64, debt: u64) -> u64 {
        self.start.saturating_add((self.used.saturating_sub(debt) / limit.max(1)).saturating_mul(window))
    }

    /// End of the window.
    pub(super) fn ends(&self, window: u64) -> u64 {
        self.start + window
    }
}

/// Use measured against the request, in the same windows. Time that a client used after its token
/// had ended was taken from other clients; the part beyond the request counts in the following
/// windows. Lent time does not count there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    start: u64,
    used: u64,
    /// Time used after tokens had ended that later windows have not yet compensated.
    overrun: u64,
}

impl Asked {
    pub(super) fn opened(now: Nanos, window: u64) -> Asked {
        Asked { start: now.0 - now.0 % window, ..Asked::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// As [`Account::at`]; `request` is the request of a window.
    #[must_use]
    pub(super) fn at(self, now: u64, window: u64, request: u64) -> Asked {
        let since = now.saturating_sub(self.start);
        if since < window {
            return self;
        }
        let windows = since / window;
        let left = self.used.saturating_sub(request).min(self.overrun);
        let used = left.saturating_sub(request.saturating_mul(windows - 1));
        Asked { start: self.start + windows * window, used, overrun: used }
    }

    /// As [`Account::charged`]. The time from `ended` on was used after the token had ended.
    #[must_use]
    pub(super) fn charged(self, from: u64, to: u64, ended: u64, window: u64, request: u64) -> Asked {
        let mut asked = self.at(from, window, request);
        let mut add = |from: u64, to: u64| {
            asked.used = asked.used.saturating_add(to.saturating_sub(from));
            asked.overrun = asked.overrun.saturating_add(to.saturating_sub(from.max(ended)));
            asked = asked.at(to, window, request);
        };
        let end = self.start.max(from - from % window) + window;
        if to <= end {
            add(from, to);
        } else {
            add(from, end);
            add(end, to - to % window);
            add(to - to % window, to);
        }
        asked
    }
}

/// Use as the published code of FaST-GShare counts it: each token in full from the moment it is
/// given, in a sliding window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// Starts and ends of tokens, oldest first.
    tokens: VecDeque<(u64, u64)>,
}

impl Given {
    pub(super) fn push(&mut self, from: u64, until: u64) {
        self.tokens.push_back((from, until));
    }

    /// The client wants a token again: its last token ends now, unless it has ended before.
    pub(super) fn cut(&mut self, now: u64) {
        if let Some((_, until)) = self.tokens.back_mut() {
            *until = now.min(*until);
        }
    }

    pub(super) fn forget_before(&mut self, start: u64) {
        while self.tokens.front().is_some_and(|&(_, until)| until < start) {
            self.tokens.pop_front();
        }
    }

    /// The time of the tokens in the window that ends now, including their future parts.
    pub(super) fn used(&self, now: u64, window: u64) -> u64 {
        let start = now.saturating_sub(window);
        self.tokens.iter().filter(|(_, until)| *until >= start).map(|&(from, until)| until - from.max(start)).sum()
    }

    /// When [`Given::used`] falls below `limit`, if no token is given until then.
    pub(super) fn falls_below_at(&self, now: u64, window: u64, limit: u64) -> u64 {
        let mut over = (self.used(now, window) + 1).saturating_sub(limit);
        let begin = now.saturating_sub(window);
        let mut start = begin;
        for &(from, until) in self.tokens.iter().filter(|(_, until)| *until >= begin) {
            start = start.max(from);
            if until - start >= over {
                break;
            }
            over -= until - start;
            start = until;
        }
        (start + over).saturating_add(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn overuse_is_paid_by_the_windows_that_follow() {
        let account = Account::opened(Nanos(0), 100).charged(10, 80, 100, 30);
        assert_eq!((account.used(), account.pays_off_at(100, 30, 0)), (70, 200));
        assert_eq!(account.at(100, 100, 30).used(), 40, "the window at 100 begins with a debt of 40");
        assert_eq!((account.at(200, 100, 30).used(), account.at(300, 100, 30).used()), (10, 0));
        let long = Account::opened(Nanos(0), 100).charged(50, 1_050, 100, 40);
        assert_eq!(long.used(), 10 + 9 * 60 + 50, "a launch that is longer than the window");
        assert_eq!(Account { start: 200, used: 5 }.charged(150, 220, 100, 40).used(), 75, "late charges count now");
    }

    #[test]
    fn charges_equal_those_of_a_loop_over_windows() {
        let mut rng = Rng::new(3);
        for _ in 0..2_000 {
            let (window, limit) = (1 + rng.below(40), rng.below(41));
            let limit = limit.min(window);
            let (mut account, mut slow, mut start, mut at) = (Account::default(), 0_u64, 0, 0);
            for _ in 0..8 {
                let (from, to) = (at + rng.below(30), 0);
                let to = to.max(from + rng.below(120));
                for now in at..to {
                    if now > 0 && now % window == 0 && start < now {
                        (slow, start) = (slow.saturating_sub(limit), now);
                    }
                    slow += u64::from(now >= from);
                }
                account = account.charged(from, to, window, limit);
                // The loop enters a window with its first nanosecond, the account at its start.
                if to > 0 && to % window == 0 && start < to {
                    (slow, start) = (slow.saturating_sub(limit), to);
                }
                assert_eq!(account.at(to, window, limit).used(), slow, "{from}..{to}, {window}, {limit}");
                at = to;
            }
        }
    }

    #[test]
    fn given_tokens_count_in_full_and_slide_out() {
        let mut given = Given::default();
        given.push(0, 12);
        assert_eq!((given.used(0, 40), given.used(45, 40), given.used(53, 40)), (12, 7, 0));
        assert_eq!(given.falls_below_at(0, 40, 12), 41);
        given.cut(5);
        assert_eq!(given.used(10, 40), 5);
        given.forget_before(6);
        assert_eq!(given.used(10, 40), 0);
    }
}
