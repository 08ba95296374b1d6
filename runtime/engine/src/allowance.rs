//! How much device memory each tenant may touch: what its invocations and sessions hold.

use atoll_core::Tenant;
use atoll_core::memory::{SessionId, SlotId};
use atoll_device::PAGE_BYTES_MAX;
use std::collections::BTreeMap;

/// The memory that was handed out to tenants, in bytes that they may touch.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    tenants: BTreeMap<Tenant, u64>,
    pub(crate) slots: BTreeMap<SlotId, (Tenant, u64)>,
    pub(crate) sessions: BTreeMap<SessionId, (Tenant, u64)>,
}

/// Bytes that the system may assign to a part of memory of this size, whose ends may lie anywhere in
/// large pages.
pub(crate) fn touchable(bytes: u64) -> u64 {
    bytes.saturating_add(2 * PAGE_BYTES_MAX)
}

impl Allowance {
    /// The tenant's bytes after a part was added.
    pub(crate) fn add(&mut self, tenant: &Tenant, bytes: u64) -> u64 {
        let held = self.tenants.entry(tenant.clone()).or_default();
        *held = held.saturating_add(bytes);
        *held
    }

    /// The tenant's bytes after a part was removed.
    pub(crate) fn remove(&mut self, tenant: &Tenant, bytes: u64) -> u64 {
        let Some(held) = self.tenants.get_mut(tenant) else { return 0 };
        *held = held.saturating_sub(bytes);
        let left = *held;
        if left == 0 {
            self.tenants.remove(tenant);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_and_given_back_adds_up_to_nothing() {
        let (a, b): (Tenant, Tenant) = ("a".parse().unwrap(), "b".parse().unwrap());
        let mut allowance = Allowance::default();
        assert_eq!(allowance.add(&a, 5), 5);
        assert_eq!(allowance.add(&a, 7), 12);
        assert_eq!(allowance.add(&b, 1), 1);
        assert_eq!(allowance.remove(&a, 5), 7);
        assert_eq!(allowance.remove(&a, 7), 0);
        assert_eq!(allowance.remove(&b, 1), 0);
        assert!(allowance.tenants.is_empty());
        assert_eq!(allowance.remove(&b, 1), 0);
    }
}
