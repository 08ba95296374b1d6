//! Counts requests that were refused for lack of credentials or rights: by reason for metrics, and
//! by tenant for usage reports.

use super::principal::Principal;
use super::reason::Reason;
use atoll_engine::{Class, EngineStatistics, InvocationOutcome, Tenant, Usage, UsageRow};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The counters of refused requests.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    reasons: [AtomicU64; Reason::ALL.len()],
    /// Refused requests by tenant and class. The number of entries is bounded, since tenants come
    /// from the configuration, the keys file and the users of the machine.
    tenants: Mutex<BTreeMap<(Tenant, Class), u64>>,
}

impl Refusals {
    /// Counts a request without a known sender.
    pub(crate) fn note(&self, reason: Reason) {
        self.reasons[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refused request by reason and by tenant.
    pub(crate) fn charge(&self, reason: Reason, principal: &Principal, class: Class) {
        self.note(reason);
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        *tenants.entry((principal.tenant.clone(), class)).or_default() += 1;
    }

    pub(crate) fn of(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize].load(Ordering::Relaxed)
    }

    /// Adds the refused requests of each tenant to its usage on the first device, since they
    /// reached no device.
    pub(crate) fn bill(&self, statistics: &mut [EngineStatistics]) {
        let Some(first) = statistics.first_mut() else { return };
        for ((tenant, class), count) in &*self.tenants.lock().unwrap_or_else(PoisonError::into_inner) {
            let is_its = |row: &&mut UsageRow| row.tenant == *tenant && row.class == *class && row.function.is_none();
            let is_billed_by_cpu = first.usage.iter().any(|row| row.tenant == *tenant && row.is_billed_by_cpu);
            match first.usage.iter_mut().find(is_its) {
                Some(row) => row.usage.invocations[InvocationOutcome::Refused as usize] += count,
                None => {
                    let mut usage = Usage::default();
                    usage.invocations[InvocationOutcome::Refused as usize] = *count;
                    let (tenant, class) = (tenant.clone(), *class);
                    first.usage.push(UsageRow { tenant, function: None, class, usage, is_billed_by_cpu });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_are_in_the_account_of_their_tenant_once() {
        let refusals = Refusals::default();
        let vision = Principal::of_test("vision");
        refusals.charge(Reason::Class, &vision, Class::RealTime);
        refusals.charge(Reason::Model, &vision, Class::RealTime);
        refusals.note(Reason::BadToken);
        let row = UsageRow {
            tenant: vision.tenant.clone(),
            function: None,
            class: Class::BestEffort,
            usage: Usage::default(),
            is_billed_by_cpu: false,
        };
        let engine = || EngineStatistics { usage: vec![row.clone()], ..EngineStatistics::default() };
        for _ in 0..2 {
            let mut statistics = vec![engine(), engine()];
            refusals.bill(&mut statistics);
            let refused = |engine: &EngineStatistics| {
                engine.usage.iter().map(|row| row.usage.invocations[InvocationOutcome::Refused as usize]).sum::<u64>()
            };
            assert_eq!(statistics.iter().map(refused).collect::<Vec<_>>(), [2, 0]);
            assert_eq!(statistics[0].usage.len(), 2);
        }
        let noted = [Reason::BadToken, Reason::Class, Reason::Model];
        let expected = Reason::ALL.map(|reason| u64::from(noted.contains(&reason)));
        assert_eq!(Reason::ALL.map(|reason| refusals.of(reason)), expected);
        assert!(Reason::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
    }
}
