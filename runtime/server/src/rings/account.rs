//! CPU time of the threads of a tenant's rings, which is billed, and the budget for the time in which
//! they serve no request.

use crate::limits::{RING_IDLE_BURST, RING_IDLE_DIVISOR};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The account of a tenant, for all its rings.
#[derive(Debug)]
pub(crate) struct Account {
    cpu_ns: AtomicU64,
    idle: Mutex<IdleBudget>,
}

impl Account {
    pub(super) fn new() -> Account {
        Account { cpu_ns: AtomicU64::new(0), idle: Mutex::new(IdleBudget::new(Instant::now())) }
    }

    /// Bills CPU time.
    pub(super) fn bill(&self, cpu: Duration) {
        self.cpu_ns.fetch_add(nanos(cpu), Ordering::Relaxed);
    }

    /// CPU time of all threads so far.
    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }

    /// Charges idle time to the tenant's budget. Returns how long the thread must pause; zero if the
    /// budget covers the time.
    pub(super) fn take_idle(&self, spent: Duration) -> Duration {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take(spent, Instant::now())
    }
}

/// The time in which a tenant's threads may be awake without serving a request: [`RING_IDLE_BURST`],
/// refilled by a [`RING_IDLE_DIVISOR`]th of the time that passes.
#[derive(Debug)]
struct IdleBudget {
    /// Negative if more was charged than was left.
    left_ns: i64,
    at: Instant,
}

impl IdleBudget {
    fn new(now: Instant) -> IdleBudget {
        IdleBudget { left_ns: signed(RING_IDLE_BURST), at: now }
    }

    /// Charges time. Returns how long it takes until the budget is no longer negative.
    fn take(&mut self, spent: Duration, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.at) / RING_IDLE_DIVISOR;
        let filled = self.left_ns.saturating_add(signed(earned)).min(signed(RING_IDLE_BURST));
        (self.left_ns, self.at) = (filled.saturating_sub(signed(spent)), now);
        Duration::from_nanos(self.left_ns.min(0).unsigned_abs()).saturating_mul(RING_IDLE_DIVISOR)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn signed(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_budget_allows_a_burst_and_then_a_share_of_the_time() {
        let start = Instant::now();
        let mut budget = IdleBudget::new(start);
        assert_eq!(budget.take(RING_IDLE_BURST, start), Duration::ZERO);
        assert_eq!(budget.take(MS, start), MS * RING_IDLE_DIVISOR);
        // The thread pauses for as long as it was told, and owes nothing.
        let later = start + MS * RING_IDLE_DIVISOR;
        assert_eq!(budget.take(Duration::ZERO, later), Duration::ZERO);
        // One that does not pause owes the sum, and so do two threads together.
        assert_eq!(budget.take(MS, later), MS * RING_IDLE_DIVISOR);
        assert_eq!(budget.take(MS, later), MS * 2 * RING_IDLE_DIVISOR);
    }

    #[test]
    fn an_unused_budget_is_not_larger_than_a_burst() {
        let start = Instant::now();
        let mut budget = IdleBudget::new(start);
        let later = start + Duration::from_secs(1000);
        assert_eq!(budget.take(RING_IDLE_BURST + MS, later), MS * RING_IDLE_DIVISOR);
        // A clock that another thread read earlier refills nothing.
        assert_eq!(budget.take(Duration::ZERO, start), MS * RING_IDLE_DIVISOR);
    }

    #[test]
    fn bills_add_up() {
        let account = Account::new();
        account.bill(MS * 3);
        account.bill(MS * 4);
        assert_eq!(account.cpu(), MS * 7);
        assert_eq!(account.take_idle(RING_IDLE_BURST), Duration::ZERO);
        assert!(account.take_idle(RING_IDLE_BURST) > RING_IDLE_BURST, "the whole burst is owed");
    }
}
