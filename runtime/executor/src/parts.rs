//! The memory of a domain with a bound, in a region that is smaller than the device.
//!
//! The engine allocates memory of all domains in one address space, as large as the device. A domain
//! without a bound has a region of that size, and its process can touch every page of it. A domain
//! with a bound has a region of twice its bound, since parts of different sizes leave gaps. Each part
//! of memory that the engine gives to the domain gets a place in the region. The engine's offsets are
//! translated to places on their way to the executor.

use atoll_device::{PAGE_BYTES_MAX, space::MEMORY_BYTES_MAX};
use std::collections::BTreeMap;

/// Marks an offset in a domain's memory as relative to the start of its region, for the fences of
/// kernels. The offset 0 cannot stand for the start, because a part may have it.
pub(super) const FROM_START: u64 = 1 << 45;

const _: () = assert!(MEMORY_BYTES_MAX < FROM_START, "no part lies there");

/// Alignment of parts: that of the engine's allocations.
const ALIGN: u64 = 256;

/// The parts of a domain's memory.
#[derive(Debug)]
pub(super) struct Parts {
    /// Size of the region.
    bytes: u64,
    /// By the engine's offset.
    parts: BTreeMap<u64, Part>,
    /// The used ranges of the region, from begin to end.
    used: BTreeMap<u64, u64>,
    /// Ranges that parts return to; others avoid them.
    reserved: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its offset in the region.
    local: u64,
    bytes: u64,
}

impl Parts {
    /// No parts yet. `None` if the region would not be smaller than the device's memory.
    pub(super) fn new(bound: u64, device_bytes: u64) -> Option<Parts> {
        let bytes = bound.checked_mul(2)?.max(1).checked_next_multiple_of(PAGE_BYTES_MAX)?;
        (bytes < device_bytes).then(|| Parts::in_region(bytes))
    }

    /// No parts yet, in a region of this size.
    pub(super) fn in_region(bytes: u64) -> Parts {
        Parts { bytes, parts: BTreeMap::new(), used: BTreeMap::new(), reserved: BTreeMap::new() }
    }

    /// Whether there are no parts.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Size of the region.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives a part a place. Removes earlier parts that it overlaps: the engine gives out each byte
    /// once. Returns whether there is room.
    pub(super) fn place(&mut self, at: u64, bytes: u64) -> bool {
        self.place_from(at, bytes, 0)
    }

    /// As [`Parts::place`]: in the first gap from an offset of the region on, if there is one.
    pub(super) fn place_from(&mut self, at: u64, bytes: u64, from: u64) -> bool {
        self.make_way(at, bytes);
        let Some(wanted) = bytes.max(1).checked_next_multiple_of(ALIGN) else { return false };
        let gaps = [(from.next_multiple_of(ALIGN), true), (0, true), (0, false)];
        let Some(local) = gaps.into_iter().find_map(|(from, avoids)| self.gap(wanted, from, avoids)) else {
            return false;
        };
        self.used.insert(local, local + wanted);
        self.parts.insert(at, Part { local, bytes });
        true
    }

    /// As [`Parts::place`]: at this offset of the region. Returns whether it is free.
    pub(super) fn place_at(&mut self, at: u64, bytes: u64, local: u64) -> bool {
        self.make_way(at, bytes);
        let end = bytes.max(1).checked_next_multiple_of(ALIGN).and_then(|wanted| local.checked_add(wanted));
        let Some(end) = end.filter(|end| *end <= self.bytes && local.is_multiple_of(ALIGN)) else { return false };
        if self.used.range(..end).next_back().is_some_and(|(_, used_end)| *used_end > local) {
            return false;
        }
        self.used.insert(local, end);
        self.reserved.remove(&local);
        self.parts.insert(at, Part { local, bytes });
        true
    }

    /// Makes new parts avoid a range of the region.
    pub(super) fn reserve(&mut self, local: u64, bytes: u64) {
        self.reserved.insert(local, local.saturating_add(bytes));
    }

    /// Makes new parts avoid a range no longer.
    pub(super) fn release(&mut self, local: u64) {
        self.reserved.remove(&local);
    }

    /// Removes parts that a new one overlaps.
    fn make_way(&mut self, at: u64, bytes: u64) {
        self.remove(at);
        let end = at.saturating_add(bytes);
        let overlaps = self.parts.range(..end).filter(|(begin, part)| *begin + part.bytes > at);
        let gone: Vec<u64> = overlaps.map(|(begin, _)| *begin).collect();
        gone.into_iter().for_each(|begin| self.remove(begin));
    }

    /// The first gap from `from` on that is large enough, between the used ranges and, if it
    /// `avoids` them, the reserved ones.
    fn gap(&self, wanted: u64, from: u64, avoids: bool) -> Option<u64> {
        let reserved = self.reserved.iter().filter(|_| avoids);
        let mut taken: Vec<(u64, u64)> = self.used.iter().chain(reserved).map(|(begin, end)| (*begin, *end)).collect();
        taken.sort_unstable();
        let mut begin = from;
        for (used, end) in taken {
            if used.checked_sub(begin).is_some_and(|gap| gap >= wanted) {
                return Some(begin);
            }
            begin = begin.max(end);
        }
        self.bytes.checked_sub(begin).filter(|gap| *gap >= wanted).map(|_| begin)
    }

    /// Removes a part; ignored if there is none.
    pub(super) fn remove(&mut self, at: u64) {
        if let Some(part) = self.parts.remove(&at) {
            self.used.remove(&part.local);
        }
    }

    /// The offset in the region; `None` if it is in no part. The end of a part belongs to it.
    pub(super) fn local(&self, at: u64) -> Option<u64> {
        if at >= FROM_START {
            return Some(at - FROM_START).filter(|local| *local <= self.bytes);
        }
        let (begin, part) = self.parts.range(..=at).next_back()?;
        let within = at - begin;
        (within <= part.bytes).then_some(part.local + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_region_is_twice_the_bound_in_large_pages_and_smaller_than_the_device() {
        let bytes = |bound, device| Parts::new(bound, device).map(|parts| parts.bytes());
        assert_eq!(bytes(3 * MIB, 64 * MIB), Some(6 * MIB));
        assert_eq!(bytes(MIB + 1, 64 * MIB), Some(4 * MIB));
        assert_eq!(bytes(0, 64 * MIB), Some(2 * MIB));
        assert_eq!(bytes(32 * MIB, 64 * MIB), None);
        assert_eq!(bytes(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn parts_are_found_wherever_the_engine_has_them() {
        let mut parts = Parts::new(MIB, 1 << 40).unwrap();
        let far = (1 << 40) - 4096;
        assert!(parts.place(far, 4096) && parts.place(0, 100) && parts.place(256, 512));
        assert_eq!([far, far + 4095, far + 4096].map(|at| parts.local(at)), [Some(0), Some(4095), Some(4096)]);
        assert_eq!([0, 100, 101, 255].map(|at| parts.local(at)), [Some(4096), Some(4196), None, None]);
        assert_eq!([256, 768, 769].map(|at| parts.local(at)), [Some(4352), Some(4864), None]);
        assert_eq!(parts.local(far - 1), None);
        // The beginning of the region, and what is behind it.
        let start = [0, 2 * MIB, 2 * MIB + 1].map(|at| parts.local(FROM_START + at));
        assert_eq!(start, [Some(0), Some(2 * MIB), None]);
    }

    #[test]
    fn a_part_returns_to_its_place_which_others_avoid_while_they_can() {
        let mut parts = Parts::new(MIB, 1 << 40).unwrap();
        let at = 7 << 30;
        assert!(parts.place_from(at, MIB / 2, MIB) && parts.local(at) == Some(MIB));
        parts.remove(at);
        parts.reserve(MIB, MIB / 2);
        assert!(parts.place(0, MIB) && parts.place(2 * MIB, MIB / 2));
        assert_eq!([0, 2 * MIB].map(|at| parts.local(at)), [Some(0), Some(MIB + MIB / 2)], "around the reserved range");
        assert!(parts.place_at(at + 4096, MIB / 2, MIB) && parts.local(at + 4096) == Some(MIB), "at another offset");
        for (bytes, local) in [(1, MIB), (256, MIB - 256), (MIB, MIB), (1, 2 * MIB), (1, 1), (u64::MAX, 0)] {
            assert!(!parts.place_at(4 * MIB, bytes, local), "{bytes} bytes at {local}");
        }
        // Without other room, a reserved range is used.
        parts.remove(at + 4096);
        parts.reserve(MIB, MIB / 2);
        assert!(parts.place(8 * MIB, 4096) && parts.local(8 * MIB) == Some(MIB));
        assert!(!parts.place_at(at, MIB / 2, MIB));
        parts.remove(8 * MIB);
        parts.release(MIB);
        assert!(parts.place_from(at, 1, 2 * MIB) && parts.local(at) == Some(MIB), "from the beginning");
    }

    #[test]
    fn the_room_of_parts_is_used_again_and_there_is_no_more() {
        let mut parts = Parts::new(MIB, 1 << 40).unwrap();
        assert!(parts.place(0, MIB) && parts.place(10 * MIB, MIB));
        assert!(!parts.place(20 * MIB, 1));
        assert_eq!(parts.local(20 * MIB), None);
        parts.remove(0);
        parts.remove(0);
        assert!(parts.place(20 * MIB, MIB));
        assert_eq!(parts.local(20 * MIB), Some(0));
        // A new part takes the place of those that it overlaps.
        assert!(parts.place(10 * MIB + 4096, 4096));
        assert_eq!((parts.local(10 * MIB), parts.local(10 * MIB + 4096)), (None, Some(MIB)));
        assert!(parts.place(30 * MIB, MIB - 4096) && !parts.place(40 * MIB, 1));
        // So does one at the same place, also if both are empty.
        let mut empty = Parts::new(MIB, 1 << 40).unwrap();
        (0..10_000).for_each(|_| assert!(empty.place(0, 0)));
    }
}
