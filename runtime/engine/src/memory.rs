//! The allocator of device memory: best fit over a list of free ranges. It only counts; the memory itself is the device's.

use atoll_core::DeviceOffset;
use std::collections::{BTreeMap, BTreeSet};

/// Alignment and granule of allocations, in bytes.
pub(crate) const ALIGN: u64 = atoll_kgraph::BUFFER_ALIGN;

/// A piece of device memory. Given back with [`Memory::free`]; dropping it leaks the memory for as long as the engine lives.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Allocation {
    offset: u64,
    bytes: u64,
}

impl Allocation {
    pub(crate) fn offset(&self) -> DeviceOffset {
        DeviceOffset(self.offset)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Which bytes of a device are taken.
///
/// Invariant: the free ranges are disjoint, never touch each other, and together with the allocations make up the whole.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Free ranges, offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// The same, by length then offset.
    by_bytes: BTreeSet<(u64, u64)>,
    total: u64,
    used: u64,
    used_max: u64,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        let total = bytes - bytes % ALIGN;
        let mut memory = Memory { by_offset: BTreeMap::new(), by_bytes: BTreeSet::new(), total, used: 0, used_max: 0 };
        if total > 0 {
            memory.insert(0, total);
        }
        memory
    }

    /// The smallest free range that fits; at least one granule, so that every allocation has an offset of its own.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let &(range, offset) = self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(offset, range);
        if range > bytes {
            self.insert(offset + bytes, range - bytes);
        }
        self.used += bytes;
        self.used_max = self.used_max.max(self.used);
        Some(Allocation { offset, bytes })
    }

    pub(crate) fn free(&mut self, allocation: Allocation) {
        let Allocation { mut offset, mut bytes } = allocation;
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

    fn insert(&mut self, offset: u64, bytes: u64) {
        self.by_offset.insert(offset, bytes);
        self.by_bytes.insert((bytes, offset));
    }

    fn remove(&mut self, offset: u64, bytes: u64) {
        let was_there = self.by_offset.remove(&offset) == Some(bytes) && self.by_bytes.remove(&(bytes, offset));
        assert!(was_there, "the two views of free memory differ");
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The most that was ever used.
    pub(crate) fn used_max(&self) -> u64 {
        self.used_max
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.total - self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_fit_is_taken_and_neighbours_merge() {
        let mut memory = Memory::new(10 * ALIGN + 100);
        assert_eq!(memory.total(), 10 * ALIGN);
        let [a, b, c, d] = [3, 1, 2, 1].map(|n| memory.allocate(n * ALIGN - 7).expect("room"));
        memory.free(a);
        memory.free(c);
        let small = memory.allocate(2 * ALIGN).expect("room");
        assert_eq!(small.offset(), DeviceOffset(4 * ALIGN), "the hole of exactly this size");
        assert!(memory.allocate(4 * ALIGN).is_none(), "six granules are free, no four of them in a row");
        [b, small, d].into_iter().for_each(|allocation| memory.free(allocation));
        assert_eq!((memory.used(), memory.by_offset.len(), memory.used_max()), (0, 1, 7 * ALIGN));
        assert!(memory.allocate(u64::MAX).is_none());
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_nothing_is_lost(steps in prop::collection::vec((any::<bool>(), 0_u64..2000, any::<prop::sample::Index>()), 1..200)) {
            let mut memory = Memory::new(1 << 16);
            let mut live: Vec<Allocation> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if allocate {
                    if let Some(new) = memory.allocate(bytes) {
                        prop_assert!(new.offset % ALIGN == 0 && new.bytes >= bytes && new.offset + new.bytes <= memory.total());
                        prop_assert!(live.iter().all(|old| new.offset + new.bytes <= old.offset || old.offset + old.bytes <= new.offset));
                        live.push(new);
                    } else {
                        let wanted = bytes.next_multiple_of(ALIGN);
                        prop_assert!(memory.by_offset.values().all(|&free| free < wanted), "{wanted} bytes were refused and are free");
                    }
                } else if !live.is_empty() {
                    memory.free(live.swap_remove(pick.index(live.len())));
                }
                let (taken, free): (u64, u64) = (live.iter().map(|a| a.bytes).sum(), memory.by_offset.values().sum());
                prop_assert_eq!((taken, taken + free), (memory.used(), memory.total()));
                prop_assert_eq!(memory.by_offset.len(), memory.by_bytes.len());
            }
            live.into_iter().for_each(|allocation| memory.free(allocation));
            prop_assert_eq!(memory.by_offset.len(), 1);
        }
    }
}
