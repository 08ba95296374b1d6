//! Tells the device how much memory each tenant may touch. A device with domains kills a process
//! that touches more.

use super::Worker;
use crate::allowance::touchable;
use atoll_core::Tenant;
use atoll_core::memory::{Granted, Place, SessionId, SlotId};

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
