//! The model of a device: which memory is reserved, and which tenant's bytes it holds.

use atoll_core::DeviceOffset;
use atoll_core::memory::Place;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Device {
    /// Constants, offset to length.
    reserved: BTreeMap<u64, u64>,
    /// Granules that hold data, with the owner of the data.
    dirty: BTreeMap<u64, String>,
}

/// The owner of granules that were just reserved for constants.
const CONSTANTS: &str = "constants";

fn granules(place: Place) -> impl Iterator<Item = u64> {
    (place.at.0..place.at.0 + place.bytes).step_by(super::GRANULE as usize)
}

impl Device {
    pub(super) fn reserve(&mut self, place: Place) {
        let before = self.reserved.insert(place.at.0, place.bytes);
        assert!(before.is_none(), "a place is reserved twice");
        granules(place).for_each(|at| drop(self.dirty.insert(at, CONSTANTS.into())));
    }

    pub(super) fn release(&mut self, place: Place) {
        // After a loss of constants the driver still releases each place.
        assert_eq!(self.reserved.remove(&place.at.0), Some(place.bytes), "released memory was reserved");
    }

    /// The memory of constants is lost; the driver releases it place by place.
    pub(super) fn forget_constants(&mut self) {}

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved.values().sum()
    }

    pub(super) fn is_reserved(&self, at: DeviceOffset, bytes: u64) -> bool {
        let before = self.reserved.range(..=at.0).next_back();
        before.is_some_and(|(begin, length)| at.0 + bytes <= begin + length)
    }

    pub(super) fn dirty(&mut self, place: Place, tenant: &str) {
        granules(place).for_each(|at| drop(self.dirty.insert(at, tenant.into())));
    }

    pub(super) fn clean(&mut self, place: Place) {
        granules(place).for_each(|at| drop(self.dirty.remove(&at)));
    }

    /// Checks that memory granted to a tenant holds no data of other tenants.
    pub(super) fn check_clean(&self, place: Place, tenant: &str) {
        for at in granules(place) {
            assert!(
                self.dirty.get(&at).is_none_or(|owner| owner == tenant),
                "{tenant} gets memory that holds bytes of {:?}",
                self.dirty[&at]
            );
        }
    }

    pub(super) fn check_disjoint(&self, slots: impl Iterator<Item = Place>, two_parts: bool) {
        let mut all: Vec<(u64, u64)> = self.reserved.iter().map(|(at, bytes)| (*at, *bytes)).collect();
        assert!(!two_parts || all.iter().all(|(at, _)| *at >= 1 << 40), "constants lie in their part");
        all.extend(slots.map(|place| (place.at.0, place.bytes)));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "allocations overlap");
    }
}
