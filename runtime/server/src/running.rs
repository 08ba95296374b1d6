//! The invocations of tenants that are queued or running, and their quota.
//!
//! All interfaces (HTTP, gRPC, the control socket, rings and CUDA sessions) get a [`Permit`] from
//! [`Running::admit`] before they invoke a function or a graph. It counts for the calling tenant,
//! not for the owner of the function. No invocation reaches an engine without a permit:
//! [`crate::inference`] takes one, and a CUDA session gets one for each task. The permit counts
//! until the engine has answered, even if the client disconnects: its invocation still occupies the
//! device until then.

use crate::identity::{Denial, Principal};
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many invocations each tenant has queued or running.
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<BTreeMap<Tenant, u64>>);

/// The right to have invocations. Counts until it and all its copies are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Permit {
    counted: Option<Arc<Counted>>,
}

impl Permit {
    /// For invocations of the daemon itself, for example to warm up a model. Counts for no tenant.
    pub(crate) fn of_daemon() -> Permit {
        Permit { counted: None }
    }

    /// The tenant for which it counts.
    pub(crate) fn tenant(&self) -> Option<&Tenant> {
        self.counted.as_deref().map(|counted| &counted.tenant)
    }
}

#[derive(Debug)]
struct Counted {
    running: Arc<Running>,
    tenant: Tenant,
    count: u64,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call that has up to `count` invocations at one time.
    ///
    /// # Errors
    /// [`Denial::Invocations`] if the tenant would have more than its quota. Nothing is counted.
    pub(crate) fn admit(self: &Arc<Running>, principal: &Principal, count: u64) -> Result<Permit, Denial> {
        let (tenant, limit) = (principal.tenant.clone(), principal.limits.invocations);
        let mut all = self.lock();
        let running = all.get(&tenant).copied().unwrap_or(0);
        match running.checked_add(count).filter(|sum| *sum <= limit) {
            Some(sum) => all.insert(tenant.clone(), sum),
            None => return Err(Denial::Invocations { tenant, wanted: count, running, limit }),
        };
        drop(all);
        Ok(Permit { counted: Some(Arc::new(Counted { running: self.clone(), tenant, count })) })
    }

    /// Number of invocations of a tenant.
    pub(crate) fn of(&self, tenant: &Tenant) -> u64 {
        self.lock().get(tenant).copied().unwrap_or(0)
    }

    /// The tenants that have invocations, with their number.
    pub(crate) fn all(&self) -> Vec<(Tenant, u64)> {
        self.lock().iter().map(|(tenant, count)| (tenant.clone(), *count)).collect()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.running.lock();
        let left = all.get(&self.tenant).map_or(0, |count| count.saturating_sub(self.count));
        match left {
            0 => all.remove(&self.tenant),
            left => all.insert(self.tenant.clone(), left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(tenant: &str, invocations: u64) -> Principal {
        let mut principal = Principal::of_test(tenant);
        principal.limits.invocations = invocations;
        principal
    }

    #[test]
    fn a_tenant_has_no_more_than_its_quota_and_others_do_not_count() {
        let running = Arc::new(Running::default());
        let (a, b) = (principal("a", 3), principal("b", 1));
        let held = [running.admit(&a, 1).unwrap(), running.admit(&a, 2).unwrap()];
        let denied = running.admit(&a, 1).unwrap_err();
        assert_eq!(denied, Denial::Invocations { tenant: a.tenant.clone(), wanted: 1, running: 3, limit: 3 });
        let text = denied.to_string();
        assert!(text.contains("has 3 invocations waiting or running, and may have 3"), "{text}");
        drop(running.admit(&b, 1).unwrap());
        assert_eq!(running.all(), [(a.tenant.clone(), 3)]);
        drop(held);
        assert_eq!((running.of(&a.tenant), running.all()), (0, Vec::new()));
        assert!(running.admit(&a, 4).is_err(), "a call that is larger than the quota");
        assert_eq!(running.of(&a.tenant), 0);
    }

    #[test]
    fn a_permit_counts_until_its_last_copy_is_dropped() {
        let running = Arc::new(Running::default());
        let a = principal("a", 2);
        let permit = running.admit(&a, 2).unwrap();
        let copy = permit.clone();
        drop(permit);
        assert_eq!(running.of(&a.tenant), 2);
        assert!(running.admit(&a, 1).is_err());
        drop(copy);
        assert!(running.admit(&a, 2).is_ok());
    }

    #[test]
    fn a_quota_of_none_admits_nothing_and_without_one_all_is_counted() {
        let running = Arc::new(Running::default());
        assert!(running.admit(&principal("a", 0), 1).is_err());
        let free = principal("b", u64::MAX);
        let held: Vec<Permit> = (0..100).map(|_| running.admit(&free, 1).unwrap()).collect();
        assert_eq!(running.of(&free.tenant), 100);
        drop(held);
    }
}
