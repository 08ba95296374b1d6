//! How much device memory each tenant may touch: the memory of its invocations and sessions.

use atoll_core::Tenant;
use atoll_core::memory::{SessionId, SlotId};
use atoll_device::PAGE_BYTES_MAX;
use std::collections::BTreeMap;

/// A part of device memory that belongs to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Memory of an invocation, in use or kept.
    Slot(SlotId),
    /// State of a session.
    Session(SessionId),
}

/// The bytes that each tenant may touch, and their parts.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    parts: BTreeMap<Part, (Tenant, u64)>,
    tenants: BTreeMap<Tenant, u64>,
}

/// Bytes that the operating system may assign to a part of this size. Its ends may lie anywhere in
/// large pages, which are assigned as a whole.
fn touchable(bytes: u64) -> u64 {
    bytes.saturating_add(2 * PAGE_BYTES_MAX)
}

impl Allowance {
    /// Adds a part of `bytes` bytes. Returns the bytes that its tenant may touch now; `None` if the
    /// part was added before.
    pub(crate) fn add(&mut self, part: Part, tenant: &Tenant, bytes: u64) -> Option<u64> {
        let bytes = touchable(bytes);
        if self.parts.contains_key(&part) {
            return None;
        }
        self.parts.insert(part, (tenant.clone(), bytes));
        let held = self.tenants.entry(tenant.clone()).or_default();
        *held = held.saturating_add(bytes);
        Some(*held)
    }

    /// Removes a part. Returns its tenant and the bytes that the tenant may touch now; `None` if
    /// there is no such part.
    pub(crate) fn remove(&mut self, part: Part) -> Option<(Tenant, u64)> {
        let (tenant, bytes) = self.parts.remove(&part)?;
        let held = self.tenants.get_mut(&tenant)?;
        *held = held.saturating_sub(bytes);
        let left = *held;
        if left == 0 {
            self.tenants.remove(&tenant);
        }
        Some((tenant, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_and_given_back_adds_up_to_nothing() {
        let (a, b): (Tenant, Tenant) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (slot, other, session) = (Part::Slot(SlotId(1)), Part::Slot(SlotId(2)), Part::Session(SessionId(1)));
        let mut allowance = Allowance::default();
        assert_eq!(allowance.add(slot, &a, 5), Some(touchable(5)));
        assert_eq!(allowance.add(slot, &a, 5), None, "a part counts once");
        assert_eq!(allowance.add(session, &a, 7), Some(touchable(5) + touchable(7)), "the ids of slots are others");
        assert_eq!(allowance.add(other, &b, 1), Some(touchable(1)));
        assert_eq!(allowance.remove(slot), Some((a.clone(), touchable(7))));
        assert_eq!(allowance.remove(slot), None);
        assert_eq!(allowance.remove(session), Some((a, 0)));
        assert_eq!(allowance.remove(other), Some((b, 0)));
        assert!(allowance.tenants.is_empty() && allowance.parts.is_empty());
    }
}
