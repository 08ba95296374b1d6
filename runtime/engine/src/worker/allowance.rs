//! Tells the device which memory each tenant has, and how much of it the tenant may touch. A device
//! with domains kills a process that touches more, and may give a process no more memory than its
//! tenant's quota needs.

use super::Worker;
use crate::allowance::Part;
use atoll_core::Tenant;
use atoll_core::memory::{Granted, Place};
use atoll_device::DeviceError;

impl Worker {
    /// Bounds the memory of a tenant's process by the tenant's quota; called before it has code.
    pub(super) fn bound_memory(&mut self, tenant: &Tenant) {
        if let Some(bytes) = self.memory.quota(tenant).map(|quota| quota.all).filter(|bytes| *bytes != u64::MAX) {
            self.device.bound_memory(tenant.as_str(), bytes);
        }
    }

    /// Allows a tenant to touch newly allocated slots; called before they are written.
    ///
    /// # Errors
    /// If there is no room for one of them in one piece. None of them is allowed then.
    pub(super) fn allow_slots(&mut self, tenant: &Tenant, slots: &[Granted]) -> Result<(), DeviceError> {
        let fresh = || slots.iter().filter_map(|granted| Some((Part::Slot(granted.slot), granted.fresh?.place)));
        let allowed = fresh().try_for_each(|(part, place)| self.allow(part, tenant, place));
        if allowed.is_err() {
            fresh().for_each(|(part, _)| self.withdraw(part));
        }
        allowed
    }

    /// Allows a tenant to touch a part of memory; called before it is written.
    ///
    /// # Errors
    /// If there is no room for it in one piece.
    pub(super) fn allow(&mut self, part: Part, tenant: &Tenant, place: Place) -> Result<(), DeviceError> {
        match self.holdings.allowance.place(part) {
            Some(known) if known == place => return Ok(()),
            // Memory of a session that had not begun was taken back.
            Some(_) => self.withdraw(part),
            None => {}
        }
        self.device.place_part(tenant.as_str(), place.at, place.bytes)?;
        if let Some(held) = self.holdings.allowance.add(part, tenant, place) {
            self.device.allow_memory(tenant.as_str(), held);
        }
        Ok(())
    }

    /// Withdraws the permission to touch a part of memory; called after the part was given back.
    pub(super) fn withdraw(&mut self, part: Part) {
        if let Some((tenant, place, held)) = self.holdings.allowance.remove(part)
            && self.lost.is_none()
        {
            self.device.remove_part(tenant.as_str(), place.at);
            self.device.allow_memory(tenant.as_str(), held);
        }
    }
}
