//! Where the parts of a ring's memory are.

use crate::limits::{ARENA_BYTES_MAX, SLOTS_MAX};
use crate::message::Span;
use atoll_device::ring::ring_bytes;

/// Words of a record: kind, number of the request, bytes of the message, and a reserved word.
pub(crate) const RECORD_WORDS: usize = 4;

/// Words of the message of a record.
pub(crate) const MESSAGE_WORDS: usize = 508;

/// Alignment of places in the arena.
const UNIT_BYTES: u64 = 8;

/// Bytes of the header, which lies before the rings. Its bells and its closed word are in different
/// pairs of cache lines.
const HEADER_BYTES: u64 = 4096;

/// Offset of the daemon's bell: its ticket and its number of sleepers.
pub(crate) const DAEMON_BELL: u64 = 0;

/// Offset of the client's bell.
pub(crate) const CLIENT_BELL: u64 = 128;

/// Offset of the word that is not 0 once the daemon has closed the ring.
pub(crate) const CLOSED: u64 = 256;

/// The sizes of a ring's parts. Both sides compute the same offsets from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    arena_bytes: u64,
}

/// Sizes that no ring may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLayout {
    /// No slots, or too many.
    #[error("a ring has 1 to {SLOTS_MAX} slots, not {0}")]
    Slots(u32),
    /// The arena is too large.
    #[error("the arena of a ring has at most {ARENA_BYTES_MAX} bytes, not {0}")]
    Arena(u64),
}

impl Layout {
    /// A ring with this many slots, and this many bytes for tensors. Both are rounded up: slots to
    /// a power of two, bytes to a multiple of 4096.
    ///
    /// # Errors
    /// If one exceeds its limit.
    pub fn new(slots: u32, arena_bytes: u64) -> Result<Layout, BadLayout> {
        if slots == 0 || slots > SLOTS_MAX {
            return Err(BadLayout::Slots(slots));
        }
        if arena_bytes > ARENA_BYTES_MAX {
            return Err(BadLayout::Arena(arena_bytes));
        }
        Ok(Layout { slots: slots.next_power_of_two(), arena_bytes: arena_bytes.next_multiple_of(4096) })
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// Bytes of the whole memory.
    pub fn bytes(&self) -> u64 {
        self.arena_at() + self.arena_bytes
    }

    /// The part of the arena that clients use for the request in a slot.
    pub fn part(&self, slot: u32) -> Span {
        let bytes = self.arena_bytes / u64::from(self.slots) / 64 * 64;
        Span { at: bytes * u64::from(slot), bytes }
    }

    /// The offset in the memory of a part of the arena; `None` if it is outside, or does not begin
    /// at a multiple of 8.
    pub(crate) fn locate(&self, span: Span) -> Option<u64> {
        let end = span.at.checked_add(span.bytes)?.checked_next_multiple_of(UNIT_BYTES)?;
        (end <= self.arena_bytes && span.at.is_multiple_of(UNIT_BYTES)).then(|| self.arena_at() + span.at)
    }

    pub(crate) fn requests_at(&self) -> u64 {
        HEADER_BYTES
    }

    pub(crate) fn answers_at(&self) -> u64 {
        self.requests_at() + self.ring_bytes()
    }

    fn arena_at(&self) -> u64 {
        (self.answers_at() + self.ring_bytes()).next_multiple_of(4096)
    }

    fn ring_bytes(&self) -> u64 {
        ring_bytes::<RECORD_WORDS, MESSAGE_WORDS>(self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MESSAGE_BYTES_MAX, SLOT_BYTES};
    use proptest::prelude::*;

    #[test]
    fn a_slot_has_the_size_that_the_limits_say() {
        assert_eq!(((RECORD_WORDS + MESSAGE_WORDS) * 8) as u64, SLOT_BYTES);
        assert_eq!(MESSAGE_WORDS * 8, MESSAGE_BYTES_MAX);
    }

    #[test]
    fn sizes_have_limits() {
        assert_eq!(Layout::new(0, 0), Err(BadLayout::Slots(0)));
        assert_eq!(Layout::new(SLOTS_MAX + 1, 0), Err(BadLayout::Slots(SLOTS_MAX + 1)));
        assert_eq!(Layout::new(1, ARENA_BYTES_MAX + 1), Err(BadLayout::Arena(ARENA_BYTES_MAX + 1)));
        let rounded = Layout::new(3, 1).unwrap();
        assert_eq!((rounded.slots(), rounded.arena_bytes()), (4, 4096));
        assert!(Layout::new(SLOTS_MAX, ARENA_BYTES_MAX).is_ok());
    }

    proptest! {
        #[test]
        fn parts_are_inside_and_apart(slots in 1..=SLOTS_MAX, arena in 0..=ARENA_BYTES_MAX) {
            let layout = Layout::new(slots, arena).unwrap();
            prop_assert!(layout.answers_at() >= layout.requests_at() + layout.ring_bytes());
            prop_assert!(layout.arena_at() >= layout.answers_at() + layout.ring_bytes());
            let mut end = 0;
            for slot in 0..layout.slots() {
                let part = layout.part(slot);
                prop_assert!(part.at >= end);
                end = part.at + part.bytes;
                prop_assert_eq!(layout.locate(part), Some(layout.arena_at() + part.at));
            }
            prop_assert!(end <= layout.arena_bytes());
        }

        #[test]
        fn what_is_located_is_inside(at: u64, bytes: u64, near in 0_u64..10_000, size in 0_u64..10_000) {
            let layout = Layout::new(8, 8192).unwrap();
            for span in [Span { at, bytes }, Span { at: near, bytes: size }, Span { at: near / 8 * 8, bytes: size }] {
                match layout.locate(span) {
                    Some(offset) => {
                        prop_assert!(span.at % 8 == 0 && offset >= layout.arena_at());
                        prop_assert!((offset + span.bytes).next_multiple_of(8) <= layout.bytes());
                    }
                    None => {
                        let end = span.at.checked_add(span.bytes);
                        prop_assert!(span.at % 8 != 0 || end.is_none_or(|end| end > layout.arena_bytes()));
                    }
                }
            }
        }
    }
}
