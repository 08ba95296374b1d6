//! Tells the device how much memory each tenant may touch. A device with domains kills a process
//! that touches more.

use super::Worker;
use crate::allowance::Part;
use atoll_core::Tenant;
use atoll_core::memory::Granted;

impl Worker {
    /// Allows a tenant to touch newly allocated slots; called before they are written.
    pub(super) fn allow_slots(&mut self, tenant: &Tenant, slots: &[Granted]) {
        for Granted { slot, fresh } in slots {
            if let Some(fresh) = fresh {
                self.allow(Part::Slot(*slot), tenant, fresh.place.bytes);
            }
        }
    }

    /// Allows a tenant to touch a part of memory; called before it is written.
    pub(super) fn allow(&mut self, part: Part, tenant: &Tenant, bytes: u64) {
        if let Some(held) = self.holdings.allowance.add(part, tenant, bytes) {
            self.device.allow_memory(tenant.as_str(), held);
        }
    }

    /// Withdraws the permission to touch a part of memory; called after the part was given back.
    pub(super) fn withdraw(&mut self, part: Part) {
        if let Some((tenant, held)) = self.holdings.allowance.remove(part)
            && self.lost.is_none()
        {
            self.device.allow_memory(tenant.as_str(), held);
        }
    }
}
