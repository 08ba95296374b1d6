//! How much device memory each tenant may touch: the memory of its invocations and sessions.

use atoll_core::Tenant;
use atoll_core::memory::{Place, SessionId, SlotId};
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
    parts: BTreeMap<Part, (Tenant, Place)>,
    tenants: BTreeMap<Tenant, u64>,
}

/// Bytes that the operating system may assign to a part of this size. Its ends may lie anywhere in
/// large pages, which are assigned as a whole.
fn touchable(bytes: u64) -> u64 {
    bytes.saturating_add(2 * PAGE_BYTES_MAX)
}

impl Allowance {
    /// Whether a part was added, and not removed since.
    pub(crate) fn contains(&self, part: Part) -> bool {
        self.parts.contains_key(&part)
    }

    /// Adds a part at `place`. Returns the bytes that its tenant may touch now; `None` if the part
    /// was added before.
    pub(crate) fn add(&mut self, part: Part, tenant: &Tenant, place: Place) -> Option<u64> {
        if self.parts.contains_key(&part) {
            return None;
        }
        self.parts.insert(part, (tenant.clone(), place));
        let held = self.tenants.entry(tenant.clone()).or_default();
        *held = held.saturating_add(touchable(place.bytes));
        Some(*held)
    }

    /// Removes a part. Returns its tenant, its place, and the bytes that the tenant may touch now;
    /// `None` if there is no such part.
    pub(crate) fn remove(&mut self, part: Part) -> Option<(Tenant, Place, u64)> {
        let (tenant, place) = self.parts.remove(&part)?;
        let held = self.tenants.get_mut(&tenant)?;
        *held = held.saturating_sub(touchable(place.bytes));
        let left = *held;
        if left == 0 {
            self.tenants.remove(&tenant);
        }
        Some((tenant, place, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::DeviceOffset;

    #[test]
    fn what_is_handed_out_and_given_back_adds_up_to_nothing() {
        let (a, b): (Tenant, Tenant) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (slot, other, session) = (Part::Slot(SlotId(1)), Part::Slot(SlotId(2)), Part::Session(SessionId(1)));
        let [five, seven, one] = [5, 7, 1].map(|bytes| Place { at: DeviceOffset(bytes * 256), bytes });
        let mut allowance = Allowance::default();
        assert_eq!(allowance.add(slot, &a, five), Some(touchable(5)));
        assert_eq!(allowance.add(slot, &a, five), None, "a part counts once");
        assert_eq!(allowance.add(session, &a, seven), Some(touchable(5) + touchable(7)), "the ids of slots are others");
        assert_eq!(allowance.add(other, &b, one), Some(touchable(1)));
        assert!([slot, other].map(|part| allowance.contains(part)) == [true; 2]);
        assert_eq!(allowance.remove(slot), Some((a.clone(), five, touchable(7))));
        assert_eq!((allowance.remove(slot), allowance.contains(slot)), (None, false));
        assert_eq!(allowance.remove(session), Some((a, seven, 0)));
        assert_eq!(allowance.remove(other), Some((b, one, 0)));
        assert!(allowance.tenants.is_empty() && allowance.parts.is_empty());
    }
}
