//! Tells the device which memory each tenant has, and how much of it the tenant may touch. A device
//! with domains kills a process that touches more. It may also give the process of a tenant with a
//! quota a region that is not much larger than the quota.

use super::Worker;
use crate::allowance::Part;
use crate::session::Session;
use atoll_core::Tenant;
use atoll_core::memory::{Granted, Place};
use atoll_device::DeviceError;

impl Worker {
    /// Limits the memory of a tenant's process by the tenant's quota; called before it gets code.
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
        let allowed = slots.iter().try_for_each(|granted| match granted.fresh {
            Some(fresh) => self.allow(Part::Slot(granted.slot), tenant, fresh.place),
            None => Ok(()),
        });
        if allowed.is_err() {
            self.withdraw_fresh(slots);
        }
        allowed
    }

    /// Withdraws the permission to touch the newly allocated slots of a grant that failed. Nothing
    /// else gives them back.
    pub(super) fn withdraw_fresh(&mut self, slots: &[Granted]) {
        slots.iter().filter(|granted| granted.fresh.is_some()).for_each(|granted| {
            self.withdraw(Part::Slot(granted.slot));
        });
    }

    /// Allows a tenant to touch a part of memory; called before it is written. Does nothing if it is
    /// allowed already, or if the device is lost.
    ///
    /// # Errors
    /// If there is no room for it in one piece.
    pub(super) fn allow(&mut self, part: Part, tenant: &Tenant, place: Place) -> Result<(), DeviceError> {
        if self.lost.is_some() || self.holdings.allowance.contains(part) {
            return Ok(());
        }
        self.device.place_part(tenant.as_str(), place.at, place.bytes)?;
        if let Some(held) = self.holdings.allowance.add(part, tenant, place) {
            self.device.allow_memory(tenant.as_str(), held);
        }
        Ok(())
    }

    /// As [`Worker::allow`], for the memory of a session. The memory of a CUDA session has the same
    /// address each time.
    ///
    /// # Errors
    /// If the address is in use, or there is no room for the memory in one piece.
    pub(super) fn allow_session(&mut self, session: &Session, place: Place) -> Result<(), DeviceError> {
        let (part, tenant) = (Part::Session(session.id), &session.function.key.tenant);
        if session.memory_bytes.is_none() {
            return self.allow(part, tenant, place);
        }
        if self.lost.is_some() || self.holdings.allowance.contains(part) {
            return Ok(());
        }
        self.device.place_part_at(tenant.as_str(), place.at, place.bytes, session.address())?;
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
