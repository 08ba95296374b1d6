//! The allocator of device memory. It only does the bookkeeping; the memory itself belongs to the
//! device.
//!
//! [`Ledger`] covers the ranges of a device's address space. Each range has its own best-fit
//! allocator over a list of free ranges.

use super::spec::{MemorySpec, Place};
use crate::ids::DeviceOffset;
use std::collections::{BTreeMap, BTreeSet};

/// Alignment of allocations in bytes, and their granule unless the device needs a larger one.
pub const ALIGN: u64 = 256;

/// The use of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Memory of invocations, which kernels write.
    Invocation,
    /// Constants, which kernels only read.
    Constant,
}

/// The memory of a device: one byte count and limit across the ranges of its address space.
#[derive(Debug)]
pub(super) struct Ledger {
    total: u64,
    used_max: u64,
    /// Bytes that are never used again; they count as used.
    withheld: u64,
    invocations: Memory,
    /// `None` if the device has no separate range for constants.
    constants: Option<Memory>,
}

impl Ledger {
    /// The allocator of all memory of a device, up to the limit if it has one. All of it is free.
    pub(super) fn new(device: &MemorySpec) -> Ledger {
        let total = device.limit_bytes.unwrap_or(u64::MAX).min(device.memory_bytes);
        let constants = (device.constants_bytes > 0).then(|| {
            Memory::new(device.constants_base, device.constants_bytes, device.constants_granule.next_multiple_of(ALIGN))
        });
        let invocations =
            Memory::new(DeviceOffset(0), if constants.is_some() { device.memory_bytes } else { total }, ALIGN);
        Ledger { total: total - total % ALIGN, used_max: 0, withheld: 0, invocations, constants }
    }

    /// Allocates at least one granule, so that every allocation has a unique offset.
    pub(super) fn allocate(&mut self, purpose: Purpose, bytes: u64) -> Option<Place> {
        let (free, part) = (self.free_bytes(), self.part(purpose));
        if granules(bytes, part.granule)? > free {
            return None;
        }
        let allocation = part.allocate(bytes)?;
        self.used_max = self.used_max.max(self.used());
        Some(allocation)
    }

    /// Allocates exactly this range of memory of invocations. Returns whether it was free.
    pub(super) fn allocate_at(&mut self, place: Place) -> bool {
        let fits = place.bytes <= self.free_bytes() && self.invocations.allocate_at(place.at.0, place.bytes);
        self.used_max = self.used_max.max(self.used());
        fits
    }

    /// Allocates memory of invocations at the first free offset from `from` on, or else from the
    /// beginning, that overlaps none of the `avoided` places.
    pub(super) fn allocate_apart(&mut self, bytes: u64, from: DeviceOffset, avoided: &[Place]) -> Option<Place> {
        let bytes = granules(bytes, ALIGN)?;
        let found = [from.0, 0].into_iter().find_map(|from| self.invocations.find_from(from, bytes, avoided))?;
        let place = Place { at: DeviceOffset(found), bytes };
        self.allocate_at(place).then_some(place)
    }

    /// Whether the memory of invocations has this range.
    pub(super) fn covers(&self, place: Place) -> bool {
        place.at.0.checked_add(place.bytes).is_some_and(|end| end <= self.invocations.end)
    }

    pub(super) fn free(&mut self, allocation: Place) {
        match &mut self.constants {
            Some(constants) if allocation.at.0 >= constants.base => constants.free(allocation),
            _ => self.invocations.free(allocation),
        }
    }

    /// Whether constants and invocations share one address range.
    pub(super) fn has_one_part(&self) -> bool {
        self.constants.is_none()
    }

    /// Allocation granule of constants in bytes.
    pub(super) fn constant_granule(&self) -> u64 {
        self.constants.as_ref().map_or(ALIGN, |constants| constants.granule)
    }

    fn part(&mut self, purpose: Purpose) -> &mut Memory {
        match (purpose, &mut self.constants) {
            (Purpose::Constant, Some(constants)) => constants,
            _ => &mut self.invocations,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn used(&self) -> u64 {
        self.invocations.used + self.constants.as_ref().map_or(0, |constants| constants.used)
    }

    /// Peak use in bytes.
    pub(super) fn used_max(&self) -> u64 {
        self.used_max
    }

    pub(super) fn free_bytes(&self) -> u64 {
        // Withheld memory counts as used, so `used` may exceed the limit.
        self.total.saturating_sub(self.used())
    }

    /// Removes the free parts of a range from use permanently. They count as used from then on.
    pub(super) fn withhold(&mut self, place: Place) {
        self.withheld += match &mut self.constants {
            Some(constants) if place.at.0 >= constants.base => constants.withhold(place),
            _ => self.invocations.withhold(place),
        };
    }

    /// Bytes that are never used again.
    pub(super) fn withheld(&self) -> u64 {
        self.withheld
    }
}

/// The size of an allocation of `bytes` bytes, rounded up to granules.
pub(super) fn granules(bytes: u64, granule: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(granule)
}

/// The allocator of one range of a device's address space.
///
/// Invariant: free ranges are disjoint and not adjacent; together with the allocations they make up
/// the whole range.
#[derive(Debug)]
struct Memory {
    base: u64,
    /// Where its last granule ends.
    end: u64,
    /// Alignment and granule of allocations.
    granule: u64,
    /// Free ranges, from offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// The same ranges, by length and offset.
    by_bytes: BTreeSet<(u64, u64)>,
    used: u64,
}

impl Memory {
    fn new(base: DeviceOffset, bytes: u64, granule: u64) -> Memory {
        let end = base.0 + bytes / granule * granule;
        let mut memory =
            Memory { base: base.0, end, granule, by_offset: BTreeMap::new(), by_bytes: BTreeSet::new(), used: 0 };
        if bytes >= granule {
            memory.insert(base.0, end - base.0);
        }
        memory
    }

    /// Allocates from the smallest free range that is large enough.
    fn allocate(&mut self, bytes: u64) -> Option<Place> {
        let bytes = granules(bytes, self.granule)?;
        let &(range, offset) = self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(offset, range);
        if range > bytes {
            self.insert(offset + bytes, range - bytes);
        }
        self.used += bytes;
        Some(Place { at: DeviceOffset(offset), bytes })
    }

    /// Allocates a range if all of it is free.
    fn allocate_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some(end) = at.checked_add(bytes) else { return false };
        let found = self.by_offset.range(..=at).next_back().map(|(&offset, &range)| (offset, range));
        let Some((offset, range)) = found.filter(|(offset, range)| offset + range >= end) else { return false };
        self.remove(offset, range);
        if at > offset {
            self.insert(offset, at - offset);
        }
        if offset + range > end {
            self.insert(end, offset + range - end);
        }
        self.used += bytes;
        true
    }

    /// The first offset from `from` on where `bytes` bytes are free and in none of the `avoided`
    /// places.
    fn find_from(&self, from: u64, bytes: u64, avoided: &[Place]) -> Option<u64> {
        let from = from.checked_next_multiple_of(self.granule)?;
        let before = self.by_offset.range(..from).next_back();
        before.into_iter().chain(self.by_offset.range(from..)).find_map(|(&offset, &range)| {
            let mut at = offset.max(from);
            let overlapped = |at: u64| {
                let overlaps = |place: &&Place| at < place.at.0 + place.bytes && place.at.0 < at.saturating_add(bytes);
                avoided.iter().find(overlaps).map(|place| place.at.0 + place.bytes)
            };
            while let Some(end) = overlapped(at) {
                at = end.next_multiple_of(self.granule);
            }
            at.checked_add(bytes).filter(|end| *end <= offset + range).map(|_| at)
        })
    }

    fn free(&mut self, allocation: Place) {
        let Place { at: DeviceOffset(mut offset), mut bytes } = allocation;
        self.used = self.used.checked_sub(bytes).expect("what is freed was allocated");
        if let Some((&before, &length)) = self.by_offset.range(..offset).next_back() {
            assert!(before + length <= offset, "memory is freed twice");
            if before + length == offset {
                self.remove(before, length);
                (offset, bytes) = (before, bytes + length);
            }
        }
        if let Some((&after, &length)) = self.by_offset.range(offset..).next() {
            assert!(offset + bytes <= after, "memory is freed twice");
            if offset + bytes == after {
                self.remove(after, length);
                bytes += length;
            }
        }
        self.insert(offset, bytes);
    }

    fn withhold(&mut self, place: Place) -> u64 {
        let before = self.used;
        let (begin, end) = (place.at.0, place.at.0 + place.bytes);
        let free: Vec<(u64, u64)> = self
            .by_offset
            .range(..end)
            .map(|(&at, &bytes)| (at, bytes))
            .filter(|(at, bytes)| at + bytes > begin)
            .collect();
        for (at, bytes) in free {
            self.remove(at, bytes);
            let (from, to) = (at.max(begin), (at + bytes).min(end));
            self.used += to - from;
            if from > at {
                self.insert(at, from - at);
            }
            if at + bytes > to {
                self.insert(to, at + bytes - to);
            }
        }
        self.used - before
    }

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        let was_there = self.by_offset.remove(&offset) == Some(bytes) && self.by_bytes.remove(&(bytes, offset));
        assert!(was_there, "the two views of free memory differ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(memory_bytes: u64, limit_bytes: u64) -> MemorySpec {
        let (constants_base, constants_bytes) = (DeviceOffset(1 << 40), memory_bytes);
        MemorySpec {
            memory_bytes,
            constants_base,
            constants_bytes,
            constants_granule: ALIGN,
            limit_bytes: Some(limit_bytes),
            overcommit: 1.0,
        }
    }

    #[test]
    fn what_is_withheld_is_never_given_out() {
        let mut memory = Memory::new(DeviceOffset(0), 10 * ALIGN, ALIGN);
        let [a, b] = [3, 2].map(|n| memory.allocate(n * ALIGN).expect("room"));
        memory.free(a);
        memory.withhold(Place { at: DeviceOffset(ALIGN), bytes: ALIGN });
        assert_eq!((memory.used, memory.by_offset.len()), (3 * ALIGN, 3));
        let one = memory.allocate(ALIGN).expect("room");
        assert_eq!((one.at.0, memory.allocate(ALIGN).expect("room").at.0), (0, 2 * ALIGN), "the ranges beside it");
        memory.free(b);
        memory.withhold(Place { at: DeviceOffset(9 * ALIGN), bytes: ALIGN });
        assert!(memory.allocate(7 * ALIGN).is_none() && memory.allocate(6 * ALIGN).is_some());
    }

    #[test]
    fn one_limit_holds_for_all_parts() {
        let mut memory = Ledger::new(&spec(10 * ALIGN, 7 * ALIGN + 1));
        let constant = memory.allocate(Purpose::Constant, 3 * ALIGN).expect("room");
        assert_eq!(constant.at, DeviceOffset(1 << 40));
        let own = memory.allocate(Purpose::Invocation, 4 * ALIGN).expect("room");
        assert_eq!((own.at, memory.free_bytes()), (DeviceOffset(0), 0));
        assert!(
            memory.allocate(Purpose::Invocation, 1).is_none()
                && memory.allocate(Purpose::Invocation, u64::MAX).is_none()
        );
        memory.free(constant);
        assert_eq!((memory.used(), memory.used_max()), (4 * ALIGN, 7 * ALIGN));
        memory.free(own);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_range_is_allocated_where_it_has_to_be_or_not_at_all() {
        let place = |at: u64, bytes: u64| Place { at: DeviceOffset(at * ALIGN), bytes: bytes * ALIGN };
        let mut memory = Ledger::new(&spec(10 * ALIGN, 7 * ALIGN));
        assert!(memory.allocate_at(place(4, 2)) && memory.used() == 2 * ALIGN);
        for taken in [place(4, 2), place(3, 2), place(5, 1), place(9, 2), place(u64::MAX / ALIGN, 1)] {
            assert!(!memory.allocate_at(taken), "{taken:?}");
        }
        assert!(!memory.allocate_at(place(0, 6)), "more than the limit");
        assert!(memory.allocate_at(place(6, 4)) && !memory.allocate_at(place(0, 2)), "the limit is shared");
        memory.free(place(4, 2));
        memory.free(place(6, 4));
        assert_eq!((memory.used(), memory.used_max()), (0, 6 * ALIGN));
        assert!(memory.allocate_at(place(0, 7)), "all of it is in one piece again");
        assert_eq!(
            [place(8, 2), place(9, 2), place(u64::MAX / ALIGN, 1)].map(|at| memory.covers(at)),
            [true, false, false]
        );
    }

    #[test]
    fn places_that_are_avoided_stay_free_while_there_is_other_room() {
        let place = |at: u64, bytes: u64| Place { at: DeviceOffset(at * ALIGN), bytes: bytes * ALIGN };
        let mut memory = Ledger::new(&spec(10 * ALIGN, 10 * ALIGN));
        let mut at = |from: u64, bytes: u64, avoided: &[Place]| {
            memory.allocate_apart(bytes * ALIGN, DeviceOffset(from * ALIGN), avoided).map(|place| place.at.0 / ALIGN)
        };
        assert_eq!(at(4, 2, &[]), Some(4));
        assert_eq!(at(4, 1, &[place(6, 2), place(8, 1)]), Some(9), "behind both");
        assert_eq!(at(4, 2, &[place(6, 2)]), Some(0), "from the beginning, if there is no room behind");
        assert_eq!(at(4, 2, &[place(1, 2), place(6, 3)]), None);
        assert_eq!(at(4, 3, &[]), Some(6));
        assert_eq!(at(20, 1, &[]), Some(2));
        assert_eq!(at(0, u64::MAX / ALIGN, &[]), None);
    }

    #[test]
    fn the_best_fit_is_taken_and_neighbours_merge() {
        let mut memory = Memory::new(DeviceOffset(0), 10 * ALIGN + 100, ALIGN);
        let [a, b, c, d] = [3, 1, 2, 1].map(|n| memory.allocate(n * ALIGN - 7).expect("room"));
        memory.free(a);
        memory.free(c);
        let small = memory.allocate(2 * ALIGN).expect("room");
        assert_eq!(small.at, DeviceOffset(4 * ALIGN), "the hole of exactly this size");
        assert!(memory.allocate(4 * ALIGN).is_none(), "six granules are free, no four of them in a row");
        [b, small, d].into_iter().for_each(|allocation| memory.free(allocation));
        assert_eq!((memory.used, &memory.by_offset), (0, &BTreeMap::from([(0, 10 * ALIGN)])));
        assert!(memory.allocate(u64::MAX).is_none());
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 0_u64..2000, any::<prop::sample::Index>()), 1..200),
        ) {
            let (base, total) = (1 << 20, 1 << 16);
            let mut memory = Memory::new(DeviceOffset(base), total, ALIGN);
            let mut live: Vec<Place> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if allocate {
                    if let Some(new) = memory.allocate(bytes) {
                        let fits = (base..=base + total - new.bytes).contains(&new.at.0);
                        prop_assert!(new.at.0 % ALIGN == 0 && new.bytes >= bytes && fits);
                        let is_apart =
                            |old: &Place| new.at.0 + new.bytes <= old.at.0 || old.at.0 + old.bytes <= new.at.0;
                        prop_assert!(live.iter().all(is_apart));
                        live.push(new);
                    } else {
                        let wanted = bytes.next_multiple_of(ALIGN);
                        let is_full = memory.by_offset.values().all(|&free| free < wanted);
                        prop_assert!(is_full, "{wanted} bytes were refused and are free");
                    }
                } else if !live.is_empty() {
                    memory.free(live.swap_remove(pick.index(live.len())));
                }
                let (taken, free): (u64, u64) = (live.iter().map(|a| a.bytes).sum(), memory.by_offset.values().sum());
                prop_assert_eq!((taken, taken + free), (memory.used, total));
                prop_assert_eq!(memory.by_offset.len(), memory.by_bytes.len());
            }
            live.into_iter().for_each(|allocation| memory.free(allocation));
            prop_assert_eq!(memory.by_offset.len(), 1);
        }
    }
}
