//! Virtual memory: ranges of addresses that the program reserves, physical memory that it creates,
//! and mappings of the one to the other.
//!
//! The session's memory is at fixed addresses. So a reservation takes its memory at once, a mapping
//! only notes that the program uses it, and a handle of physical memory is a size. The first mapping
//! of a handle decides where its memory is; it cannot be mapped at other addresses later.

use crate::log::log;
use atoll_session::{Code, Span};
use std::collections::BTreeMap;

/// The size of which reservations, handles and mappings are multiples: that of GPUs.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// Physical memory.
#[derive(Clone, Copy, Debug)]
struct Physical {
    bytes: u64,
    /// The number of times that the program holds it.
    held: u64,
    /// The address of its first byte, once it is mapped.
    place: Option<u64>,
}

/// A mapping.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    physical: u64,
    /// The driver's number for the device's access.
    access: i32,
}

/// All virtual memory.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    /// Sizes of reservations by address.
    reserved: BTreeMap<u64, u64>,
    physical: BTreeMap<u64, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    last: u64,
}

fn is_granular(values: &[u64]) -> bool {
    values.iter().all(|value| value.is_multiple_of(GRANULARITY_BYTES))
}

impl VirtualMemory {
    /// Notes a reservation, whose memory was allocated.
    pub(crate) fn reserved(&mut self, span: Span) {
        self.reserved.insert(span.at, span.bytes);
    }

    /// Whether an allocation is a reservation.
    pub(crate) fn is_reservation(&self, at: u64) -> bool {
        self.reserved.contains_key(&at)
    }

    /// Removes a reservation, in which nothing is mapped.
    pub(crate) fn unreserve(&mut self, span: Span) -> Result<(), Code> {
        if self.reserved.get(&span.at) != Some(&span.bytes) || self.is_used(span) {
            return Err(Code::INVALID_VALUE);
        }
        self.reserved.remove(&span.at);
        Ok(())
    }

    /// Creates physical memory.
    pub(crate) fn create(&mut self, bytes: u64) -> Result<u64, Code> {
        if bytes == 0 || !is_granular(&[bytes]) {
            return Err(Code::INVALID_VALUE);
        }
        self.last += 1;
        self.physical.insert(self.last, Physical { bytes, held: 1, place: None });
        Ok(self.last)
    }

    /// Bytes of all physical memory.
    pub(crate) fn created_bytes(&self) -> u64 {
        self.physical.values().map(|physical| physical.bytes).sum()
    }

    /// Returns an error if a handle does not exist.
    pub(crate) fn check(&self, physical: u64) -> Result<(), Code> {
        if self.physical.get(&physical).is_some_and(|known| known.held > 0) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    /// Gives a handle back. Its memory stays while it is mapped.
    pub(crate) fn release(&mut self, physical: u64) -> Result<(), Code> {
        self.check(physical)?;
        self.physical.entry(physical).and_modify(|known| known.held -= 1);
        self.forget(physical);
        Ok(())
    }

    /// The handle of the memory at an address, which the program holds once more.
    pub(crate) fn retain(&mut self, at: u64) -> Result<u64, Code> {
        let physical = self.find(at).ok_or(Code::INVALID_VALUE)?.physical;
        self.physical.entry(physical).and_modify(|known| known.held += 1);
        Ok(physical)
    }

    /// Maps a part of a handle's memory, which begins `offset` bytes after its first byte.
    pub(crate) fn map(&mut self, span: Span, offset: u64, physical: u64) -> Result<(), Code> {
        self.check(physical)?;
        let known = self.physical.get_mut(&physical).ok_or(Code::INVALID_VALUE)?;
        let is_inside = offset.checked_add(span.bytes).is_some_and(|end| end <= known.bytes);
        let (start, size) = self.reserved.range(..=span.at).next_back().ok_or(Code::INVALID_VALUE)?;
        let is_reserved = Span { at: *start, bytes: *size }.contains(span);
        if span.bytes == 0 || !is_granular(&[span.at, span.bytes, offset]) || !is_inside || !is_reserved {
            return Err(Code::INVALID_VALUE);
        }
        let place = span.at.wrapping_sub(offset);
        if known.place.is_some_and(|first| first != place) {
            log(&"memory of a session that was mapped cannot be mapped at other addresses");
            return Err(Code::NOT_SUPPORTED);
        }
        if is_used(&self.mappings, span) {
            return Err(Code::INVALID_VALUE);
        }
        known.place = Some(place);
        self.mappings.insert(span.at, Mapping { bytes: span.bytes, physical, access: 0 });
        Ok(())
    }

    /// Removes all mappings of a range, which has only whole ones.
    pub(crate) fn unmap(&mut self, span: Span) -> Result<(), Code> {
        for (at, mapping) in self.whole(span)? {
            self.mappings.remove(&at);
            self.forget(mapping.physical);
        }
        Ok(())
    }

    /// Sets the device's access to a range that is mapped.
    pub(crate) fn set_access(&mut self, span: Span, access: i32) -> Result<(), Code> {
        for (at, _) in self.whole(span)? {
            self.mappings.entry(at).and_modify(|mapping| mapping.access = access);
        }
        Ok(())
    }

    /// The device's access to an address.
    pub(crate) fn access(&self, at: u64) -> Result<i32, Code> {
        Ok(self.find(at).ok_or(Code::INVALID_VALUE)?.access)
    }

    /// The mappings that fill a range.
    fn whole(&self, span: Span) -> Result<Vec<(u64, Mapping)>, Code> {
        let end = span.end().ok_or(Code::INVALID_VALUE)?;
        let found: Vec<(u64, Mapping)> = self.mappings.range(span.at..end).map(|(at, of)| (*at, *of)).collect();
        let filled = found.iter().map(|(_, mapping)| mapping.bytes).sum::<u64>();
        let first = found.first().is_some_and(|(at, _)| *at == span.at);
        if first && filled == span.bytes { Ok(found) } else { Err(Code::INVALID_VALUE) }
    }

    fn find(&self, at: u64) -> Option<Mapping> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at - start < mapping.bytes).then_some(*mapping)
    }

    fn is_used(&self, span: Span) -> bool {
        is_used(&self.mappings, span)
    }

    /// Removes physical memory that is neither held nor mapped.
    fn forget(&mut self, physical: u64) {
        let is_mapped = self.mappings.values().any(|mapping| mapping.physical == physical);
        if !is_mapped && self.physical.get(&physical).is_some_and(|known| known.held == 0) {
            self.physical.remove(&physical);
        }
    }
}

/// Whether a mapping has a part in a range.
fn is_used(mappings: &BTreeMap<u64, Mapping>, span: Span) -> bool {
    let end = span.at.saturating_add(span.bytes);
    mappings.range(..end).next_back().is_some_and(|(at, mapping)| at + mapping.bytes > span.at)
}
