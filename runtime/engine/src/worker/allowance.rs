//! How much device memory each tenant may touch: what its invocations and sessions hold. A device
//! with domains kills a process that touches more.

use super::Worker;
use atoll_core::Tenant;
use atoll_core::memory::{Granted, Place, SessionId, SlotId};
use atoll_device::PAGE_BYTES_MAX;
use std::collections::BTreeMap;

/// The memory that was handed out to tenants, in bytes that they may touch.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    tenants: BTreeMap<Tenant, u64>,
    slots: BTreeMap<SlotId, (Tenant, u64)>,
    sessions: BTreeMap<SessionId, (Tenant, u64)>,
}

/// Bytes that the system may assign to a part of memory of this size, whose ends may lie anywhere in
/// large pages.
fn touchable(bytes: u64) -> u64 {
    bytes.saturating_add(2 * PAGE_BYTES_MAX)
}

impl Allowance {
    /// The tenant's bytes after a part was added.
    fn add(&mut self, tenant: &Tenant, bytes: u64) -> u64 {
        let held = self.tenants.entry(tenant.clone()).or_default();
        *held = held.saturating_add(bytes);
        *held
    }

    /// The tenant's bytes after a part was removed.
    fn remove(&mut self, tenant: &Tenant, bytes: u64) -> u64 {
        let Some(held) = self.tenants.get_mut(tenant) else { return 0 };
        *held = held.saturating_sub(bytes);
        let left = *held;
        if left == 0 {
            self.tenants.remove(tenant);
        }
        left
    }
}

impl Worker {
    /// Allows a tenant to touch newly allocated slots; called before they are written.
    pub(super) fn allow_slots(&mut self, tenant: &Tenant, slots: &[Granted]) {
        for (slot, fresh) in slots.iter().filter_map(|granted| Some((granted.slot, granted.fresh?))) {
            let bytes = touchable(fresh.place.bytes);
            let allowance = &mut self.holdings.allowance;
            if allowance.slots.insert(slot, (tenant.clone(), bytes)).is_none() {
                let held = allowance.add(tenant, bytes);
                self.device.allow_memory(tenant.as_str(), held);
            }
        }
    }

    /// Withdraws a slot; called after its memory was given back.
    pub(super) fn withdraw_slot(&mut self, slot: SlotId) {
        if let Some((tenant, bytes)) = self.holdings.allowance.slots.remove(&slot) {
            self.withdraw(&tenant, bytes);
        }
    }

    /// Allows a tenant to touch a session's memory; called before it is written.
    pub(super) fn allow_session(&mut self, tenant: &Tenant, session: SessionId, place: Place) {
        let bytes = touchable(place.bytes);
        let allowance = &mut self.holdings.allowance;
        if allowance.sessions.insert(session, (tenant.clone(), bytes)).is_none() {
            let held = allowance.add(tenant, bytes);
            self.device.allow_memory(tenant.as_str(), held);
        }
    }

    /// Withdraws a session's memory; called after it was given back.
    pub(super) fn withdraw_session(&mut self, session: SessionId) {
        if let Some((tenant, bytes)) = self.holdings.allowance.sessions.remove(&session) {
            self.withdraw(&tenant, bytes);
        }
    }

    fn withdraw(&mut self, tenant: &Tenant, bytes: u64) {
        let held = self.holdings.allowance.remove(tenant, bytes);
        if self.lost.is_none() {
            self.device.allow_memory(tenant.as_str(), held);
        }
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
