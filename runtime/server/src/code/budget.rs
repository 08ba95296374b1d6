//! The compiler time of each tenant, and its quota. Reads no clock: times are passed in.
//!
//! One compilation runs at a time, so a tenant that deploys one new bundle after another makes the
//! others wait. Spent time is forgiven evenly, the quota in each hour. A tenant that has spent its
//! quota is refused until enough is forgiven. The duration of a compilation is not known before it
//! ends, so the last one may exceed the quota, by `compile_seconds` at most.

use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The period of the quota.
const PERIOD: Duration = Duration::from_secs(3600);

/// The time that each tenant has spent. Tenants without a quota are not counted.
#[derive(Debug, Default)]
pub(crate) struct CompileBudget(Mutex<BTreeMap<Tenant, Spent>>);

#[derive(Clone, Copy, Debug)]
struct Spent {
    /// The time that was not forgiven yet at `at`.
    time: Duration,
    at: Instant,
}

/// A tenant has spent its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    /// The time that it has spent and that is not forgiven yet.
    pub(crate) spent: Duration,
    /// How long it has to wait; [`Duration::MAX`] if it may never compile.
    pub(crate) after: Duration,
}

impl Exhausted {
    /// Advice for messages: `wait 12 s, `, rounded up; empty if waiting does not help.
    pub(crate) fn wait(&self) -> String {
        match self.after {
            Duration::MAX => String::new(),
            after => format!("wait {} s, ", after.as_secs().saturating_add(1)),
        }
    }
}

impl Spent {
    fn left(self, quota: Duration, now: Instant) -> Duration {
        let forgiven =
            now.saturating_duration_since(self.at).as_secs_f64() * quota.as_secs_f64() / PERIOD.as_secs_f64();
        // Too long for a duration is longer than everything that was spent.
        self.time.saturating_sub(Duration::try_from_secs_f64(forgiven).unwrap_or(Duration::MAX))
    }
}

impl CompileBudget {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, Spent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that a tenant has spent and that is not forgiven yet.
    pub(crate) fn spent(&self, tenant: &Tenant, quota: Duration, now: Instant) -> Duration {
        self.lock().get(tenant).map_or(Duration::ZERO, |spent| spent.left(quota, now))
    }

    /// Refuses a compilation of a tenant that has spent its quota.
    pub(crate) fn check(&self, tenant: &Tenant, quota: Duration, now: Instant) -> Result<(), Exhausted> {
        let spent = self.spent(tenant, quota, now);
        if spent < quota {
            return Ok(());
        }
        let rate = quota.as_secs_f64() / PERIOD.as_secs_f64();
        let after = (spent - quota).as_secs_f64() / rate;
        Err(Exhausted { spent, after: Duration::try_from_secs_f64(after).unwrap_or(Duration::MAX) })
    }

    /// Counts a compilation that has ended.
    pub(crate) fn add(&self, tenant: &Tenant, quota: Duration, time: Duration, now: Instant) {
        let mut all = self.lock();
        let before = all.get(tenant).map_or(Duration::ZERO, |spent| spent.left(quota, now));
        all.insert(tenant.clone(), Spent { time: before.saturating_add(time), at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_waits_until_what_it_spent_is_forgiven() {
        let (budget, start) = (CompileBudget::default(), Instant::now());
        let [a, b]: [Tenant; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let quota = Duration::from_secs(360);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (minute, check) = (Duration::from_secs(60), |tenant, now| budget.check(tenant, quota, now));
        assert_eq!(check(&a, at(0)), Ok(()));
        (0..5).for_each(|_| budget.add(&a, quota, minute, at(0)));
        assert_eq!(check(&a, at(0)), Ok(()), "of six minutes one is left");
        // The last one takes ten minutes: nine more than the quota. A tenth of the time is forgiven.
        budget.add(&a, quota, 10 * minute, at(0));
        let refused = check(&a, at(600)).unwrap_err();
        assert_eq!((refused.spent.as_secs(), refused.after.as_secs_f64().round()), (14 * 60, 4800.0));
        assert!(check(&a, at(600 + 4799)).is_err());
        assert_eq!(check(&a, at(600 + 4801)), Ok(()));
        assert_eq!(check(&b, at(600)), Ok(()), "another tenant has a quota of its own");
        assert_eq!(budget.spent(&a, quota, at(1_000_000)), Duration::ZERO);
    }

    #[test]
    fn a_quota_of_nothing_compiles_nothing() {
        let (budget, now) = (CompileBudget::default(), Instant::now());
        let tenant = Tenant::default();
        let refused = budget.check(&tenant, Duration::ZERO, now).unwrap_err();
        assert_eq!(refused, Exhausted { spent: Duration::ZERO, after: Duration::MAX });
        assert_eq!(refused.wait(), "");
        assert_eq!(Exhausted { after: Duration::from_millis(1500), ..refused }.wait(), "wait 2 s, ");
    }
}
