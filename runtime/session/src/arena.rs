//! The client's allocator: best fit in the session's memory.

use crate::code::Code;
use crate::limits::ALIGN_BYTES;
use crate::ranges::Span;
use std::collections::{BTreeMap, BTreeSet};

/// Free parts of the session's memory.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    bytes: u64,
    free_bytes: u64,
    /// Sizes of free parts by address.
    free: BTreeMap<u64, u64>,
    /// The same parts, ordered by size.
    by_size: BTreeSet<(u64, u64)>,
}

impl Arena {
    /// An allocator for the range. Its ends are rounded inwards to the alignment.
    pub(crate) fn new(span: Span) -> Arena {
        let start = span.at.checked_next_multiple_of(ALIGN_BYTES);
        let end = span.end().map(|end| end / ALIGN_BYTES * ALIGN_BYTES);
        let bytes = start.zip(end).map_or(0, |(start, end)| end.saturating_sub(start));
        let mut arena = Arena { bytes, free_bytes: 0, free: BTreeMap::new(), by_size: BTreeSet::new() };
        if bytes > 0 {
            arena.put(start.unwrap_or(0), bytes);
        }
        arena
    }

    /// Returns the free and the total bytes.
    pub(crate) fn free_and_total(&self) -> (u64, u64) {
        (self.free_bytes, self.bytes)
    }

    /// Takes a part of at least this size at a multiple of `align`, a power of two, from the smallest
    /// free part that is large enough.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Result<u64, Code> {
        let bytes = bytes.checked_next_multiple_of(ALIGN_BYTES).ok_or(Code::OUT_OF_MEMORY)?;
        // A part of this size has room wherever it begins.
        let room = bytes.checked_add(align.saturating_sub(ALIGN_BYTES)).ok_or(Code::OUT_OF_MEMORY)?;
        let &(size, start) = self.by_size.range((room, 0)..).next().ok_or(Code::OUT_OF_MEMORY)?;
        self.cut(start, size);
        let at = start.next_multiple_of(align.max(ALIGN_BYTES));
        let (before, after) = (at - start, size - (at - start) - bytes);
        if before > 0 {
            self.put(start, before);
        }
        if after > 0 {
            self.put(at + bytes, after);
        }
        Ok(at)
    }

    /// Returns a part that was taken with this size.
    pub(crate) fn give_back(&mut self, span: Span) {
        let (mut at, mut bytes) = (span.at, span.bytes.next_multiple_of(ALIGN_BYTES));
        if let Some(after) = self.free.get(&(at + bytes)).copied() {
            self.cut(at + bytes, after);
            bytes += after;
        }
        if let Some((&before, &size)) = self.free.range(..at).next_back()
            && before + size == at
        {
            self.cut(before, size);
            (at, bytes) = (before, size + bytes);
        }
        self.put(at, bytes);
    }

    fn put(&mut self, at: u64, bytes: u64) {
        self.free.insert(at, bytes);
        self.by_size.insert((bytes, at));
        self.free_bytes += bytes;
    }

    fn cut(&mut self, at: u64, bytes: u64) {
        self.free.remove(&at);
        self.by_size.remove(&(bytes, at));
        self.free_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_disjoint_and_joined_again() {
        let mut arena = Arena::new(Span { at: 1000, bytes: 10 * ALIGN_BYTES });
        assert_eq!(arena.free_and_total(), (9 * ALIGN_BYTES, 9 * ALIGN_BYTES));
        let parts: Vec<u64> = [1, 513, 512].map(|bytes| arena.take(bytes, ALIGN_BYTES).expect("room")).to_vec();
        assert_eq!(parts, [1024, 1536, 2560]);
        assert_eq!(arena.take(6 * ALIGN_BYTES, ALIGN_BYTES), Err(Code::OUT_OF_MEMORY));
        assert_eq!(arena.take(u64::MAX, ALIGN_BYTES), Err(Code::OUT_OF_MEMORY));
        for (at, bytes) in [(1536, 513), (1024, 1), (2560, 512)] {
            arena.give_back(Span { at, bytes });
        }
        assert_eq!(arena.take(9 * ALIGN_BYTES, ALIGN_BYTES), Ok(1024));
        assert_eq!(arena.free_and_total().0, 0);
    }

    #[test]
    fn a_million_allocations_are_given_back() {
        let mut arena = Arena::new(Span { at: 0, bytes: 1 << 40 });
        let take = |index| arena.take(1 + index % 5000, ALIGN_BYTES).expect("room");
        let parts: Vec<u64> = (0..1_000_000u64).map(take).collect();
        for (index, at) in parts.into_iter().enumerate() {
            arena.give_back(Span { at, bytes: 1 + index as u64 % 5000 });
        }
        assert_eq!(arena.free_and_total(), (1 << 40, 1 << 40));
    }

    #[test]
    fn parts_begin_at_multiples_of_their_alignment() {
        let mut arena = Arena::new(Span { at: ALIGN_BYTES, bytes: 64 << 10 });
        assert_eq!(arena.take(1, ALIGN_BYTES), Ok(ALIGN_BYTES));
        let at = arena.take(5000, 4096).expect("room");
        assert_eq!(at, 4096);
        // What lies between is used for others.
        assert_eq!(arena.take(1, ALIGN_BYTES), Ok(2 * ALIGN_BYTES));
        for (at, bytes) in [(at, 5000), (ALIGN_BYTES, 1), (2 * ALIGN_BYTES, 1)] {
            arena.give_back(Span { at, bytes });
        }
        assert_eq!(arena.free_and_total(), (64 << 10, 64 << 10));
        assert_eq!(arena.take(64 << 10, 4096), Err(Code::OUT_OF_MEMORY));
        assert_eq!(arena.take(64 << 10, ALIGN_BYTES), Ok(ALIGN_BYTES));
    }
}
