//! Device memory: what is taken, and where. It only counts; the memory itself is the device's.
//!
//! [`DeviceMemory`] is the one ledger over the parts of a device's address space, each of which has an allocator of its own: best fit over a list of free ranges.

use atoll_core::DeviceOffset;
use atoll_device::DeviceInfo;
use std::collections::{BTreeMap, BTreeSet};

/// Alignment of allocations in bytes, and their granule where the device asks for no larger one.
pub(crate) const ALIGN: u64 = atoll_kgraph::BUFFER_ALIGN;

/// A piece of device memory. Given back with [`DeviceMemory::free`]; dropping it leaks the memory for as long as the engine lives.
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

/// What a piece of device memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Memory of invocations, which kernels change.
    Invocation,
    /// Constants, which kernels only read.
    Constant,
}

/// The memory of a device: one count of bytes against its limit, over the parts of its address space.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    total: u64,
    used_max: u64,
    invocations: Memory,
    /// `None` on a device that has no part of its own for constants.
    constants: Option<Memory>,
}

impl DeviceMemory {
    /// All of a device's memory, or so many bytes of it.
    pub(crate) fn new(device: &DeviceInfo, limit: Option<u64>) -> DeviceMemory {
        let total = limit.unwrap_or(u64::MAX).min(device.memory_bytes);
        let constants = (device.constants_bytes > 0)
            .then(|| Memory::new(device.constants_base, device.constants_bytes, device.constants_granule.next_multiple_of(ALIGN)));
        let invocations = Memory::new(DeviceOffset(0), if constants.is_some() { device.memory_bytes } else { total }, ALIGN);
        DeviceMemory { total: total - total % ALIGN, used_max: 0, invocations, constants }
    }

    /// At least one granule, so that every allocation has an offset of its own.
    pub(crate) fn allocate(&mut self, purpose: Purpose, bytes: u64) -> Option<Allocation> {
        let (free, part) = (self.free_bytes(), self.part(purpose));
        if granules(bytes, part.granule)? > free {
            return None;
        }
        let allocation = part.allocate(bytes)?;
        self.used_max = self.used_max.max(self.used());
        Some(allocation)
    }

    pub(crate) fn free(&mut self, allocation: Allocation) {
        match &mut self.constants {
            Some(constants) if allocation.offset >= constants.base => constants.free(allocation),
            _ => self.invocations.free(allocation),
        }
    }

    /// Whether constants and invocations take turns in the same addresses.
    pub(crate) fn has_one_part(&self) -> bool {
        self.constants.is_none()
    }

    /// What constants take multiples of.
    pub(crate) fn constant_granule(&self) -> u64 {
        self.constants.as_ref().map_or(ALIGN, |constants| constants.granule)
    }

    fn part(&mut self, purpose: Purpose) -> &mut Memory {
        match (purpose, &mut self.constants) {
            (Purpose::Constant, Some(constants)) => constants,
            _ => &mut self.invocations,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn used(&self) -> u64 {
        self.invocations.used + self.constants.as_ref().map_or(0, |constants| constants.used)
    }

    /// The most that was ever used.
    pub(crate) fn used_max(&self) -> u64 {
        self.used_max
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.total - self.used()
    }
}

/// What an allocation of so many bytes takes.
pub(crate) fn granules(bytes: u64, granule: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(granule)
}

/// Which bytes of one part of a device's address space are taken.
///
/// Invariant: the free ranges are disjoint, never touch each other, and together with the allocations make up the whole.
#[derive(Debug)]
struct Memory {
    base: u64,
    /// Allocations begin at multiples of it and take multiples of it.
    granule: u64,
    /// Free ranges, offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// The same, by length then offset.
    by_bytes: BTreeSet<(u64, u64)>,
    used: u64,
}

impl Memory {
    fn new(base: DeviceOffset, bytes: u64, granule: u64) -> Memory {
        let mut memory = Memory { base: base.0, granule, by_offset: BTreeMap::new(), by_bytes: BTreeSet::new(), used: 0 };
        if bytes >= granule {
            memory.insert(base.0, bytes - bytes % granule);
        }
        memory
    }

    /// The smallest free range that fits.
    fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        let bytes = granules(bytes, self.granule)?;
        let &(range, offset) = self.by_bytes.range((bytes, 0)..).next()?;
        self.remove(offset, range);
        if range > bytes {
            self.insert(offset + bytes, range - bytes);
        }
        self.used += bytes;
        Some(Allocation { offset, bytes })
    }

    fn free(&mut self, allocation: Allocation) {
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
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A device with so many bytes of memory, and as much room for constants.
    pub(crate) fn device_info(memory_bytes: u64) -> DeviceInfo {
        DeviceInfo {
            name: "test".into(),
            targets: vec![],
            compute_units: 1,
            memory_bytes,
            constants_base: DeviceOffset(1 << 40),
            constants_bytes: memory_bytes,
            constants_granule: ALIGN,
            shared_bytes_max: 0,
            preempt_level: atoll_core::PreemptLevel::Block,
            can_abort: false,
            queues: 1,
            queue_capacity: 1,
            time_limit: None,
            host_threads: 1,
            host_cpus: vec![],
        }
    }

    #[test]
    fn one_limit_holds_for_all_parts() {
        let mut memory = DeviceMemory::new(&device_info(10 * ALIGN), Some(7 * ALIGN + 1));
        let constant = memory.allocate(Purpose::Constant, 3 * ALIGN).expect("room");
        assert_eq!(constant.offset(), DeviceOffset(1 << 40));
        let own = memory.allocate(Purpose::Invocation, 4 * ALIGN).expect("room");
        assert_eq!((own.offset(), memory.free_bytes()), (DeviceOffset(0), 0));
        assert!(memory.allocate(Purpose::Invocation, 1).is_none() && memory.allocate(Purpose::Invocation, u64::MAX).is_none());
        memory.free(constant);
        assert_eq!((memory.used(), memory.used_max()), (4 * ALIGN, 7 * ALIGN));
        memory.free(own);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn the_best_fit_is_taken_and_neighbours_merge() {
        let mut memory = Memory::new(DeviceOffset(0), 10 * ALIGN + 100, ALIGN);
        let [a, b, c, d] = [3, 1, 2, 1].map(|n| memory.allocate(n * ALIGN - 7).expect("room"));
        memory.free(a);
        memory.free(c);
        let small = memory.allocate(2 * ALIGN).expect("room");
        assert_eq!(small.offset(), DeviceOffset(4 * ALIGN), "the hole of exactly this size");
        assert!(memory.allocate(4 * ALIGN).is_none(), "six granules are free, no four of them in a row");
        [b, small, d].into_iter().for_each(|allocation| memory.free(allocation));
        assert_eq!((memory.used, &memory.by_offset), (0, &BTreeMap::from([(0, 10 * ALIGN)])));
        assert!(memory.allocate(u64::MAX).is_none());
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_nothing_is_lost(steps in prop::collection::vec((any::<bool>(), 0_u64..2000, any::<prop::sample::Index>()), 1..200)) {
            let (base, total) = (1 << 20, 1 << 16);
            let mut memory = Memory::new(DeviceOffset(base), total, ALIGN);
            let mut live: Vec<Allocation> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if allocate {
                    if let Some(new) = memory.allocate(bytes) {
                        prop_assert!(new.offset % ALIGN == 0 && new.bytes >= bytes && (base..=base + total - new.bytes).contains(&new.offset));
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
                prop_assert_eq!((taken, taken + free), (memory.used, total));
                prop_assert_eq!(memory.by_offset.len(), memory.by_bytes.len());
            }
            live.into_iter().for_each(|allocation| memory.free(allocation));
            prop_assert_eq!(memory.by_offset.len(), 1);
        }
    }
}
