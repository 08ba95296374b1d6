//! The table of epoch words that also have a word in host memory.
//!
//! The engine names an epoch word by its offset in device memory. Once an offset is bound to a word
//! of host memory, every write to the one is repeated for the other.

use atoll_core::DeviceOffset;
use std::collections::BTreeMap;

/// Number of words in host memory. Each instance of a function keeps one, so this is far above what
/// is needed; if all are taken, kernels read device memory.
pub const WORDS_MAX: usize = 1 << 14;

/// Indices of host words, by offset in device memory.
#[derive(Debug)]
pub struct WordTable {
    by_offset: BTreeMap<u64, usize>,
    free: Vec<usize>,
}

impl Default for WordTable {
    /// A table in which no offset is bound.
    fn default() -> WordTable {
        WordTable { by_offset: BTreeMap::new(), free: (0..WORDS_MAX).rev().collect() }
    }
}

impl WordTable {
    /// The host word of an offset, if it is bound.
    pub fn find(&self, word: DeviceOffset) -> Option<usize> {
        self.by_offset.get(&word.0).copied()
    }

    /// Binds an offset to a free host word; `None` if all are taken. The caller sets the word to
    /// the value in device memory.
    pub fn bind(&mut self, word: DeviceOffset) -> Option<usize> {
        let index = self.free.pop()?;
        self.by_offset.insert(word.0, index);
        Some(index)
    }

    /// Frees the host word of an offset.
    pub fn unbind(&mut self, word: DeviceOffset) {
        self.free.extend(self.by_offset.remove(&word.0));
    }

    /// The host words that are bound.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.by_offset.values().copied()
    }

    /// Device memory was written: calls `set` with each bound word in the range and its new value.
    /// Words that were written only in part are unbound: no launch in flight uses them.
    pub fn written(&mut self, at: DeviceOffset, bytes: &[u8], set: impl FnMut(usize, u32)) {
        let value = |within: usize| bytes.get(within..within + 4)?.try_into().ok().map(u32::from_ne_bytes);
        self.change(at, bytes.len() as u64, value, set);
    }

    /// Device memory was filled; see [`WordTable::written`].
    pub fn filled(&mut self, at: DeviceOffset, byte: u8, bytes: u64, set: impl FnMut(usize, u32)) {
        let value = |within: usize| (within as u64 + 4 <= bytes).then_some(u32::from_ne_bytes([byte; 4]));
        self.change(at, bytes, value, set);
    }

    /// Device memory was changed to unknown values: unbinds all words in the range.
    pub fn forget(&mut self, at: DeviceOffset, bytes: u64) {
        self.change(at, bytes, |_| None, |_, _| {});
    }

    /// `value` returns the new value of the word that begins that many bytes into the range; `None`
    /// if the word is not entirely inside.
    fn change(
        &mut self,
        at: DeviceOffset,
        bytes: u64,
        value: impl Fn(usize) -> Option<u32>,
        mut set: impl FnMut(usize, u32),
    ) {
        if bytes == 0 {
            return;
        }
        let touched = at.0.saturating_sub(3)..at.0.saturating_add(bytes);
        let touched: Vec<(u64, usize)> =
            self.by_offset.range(touched).map(|(offset, index)| (*offset, *index)).collect();
        for (offset, index) in touched {
            match offset.checked_sub(at.0).and_then(|within| value(within as usize)) {
                Some(value) => set(index, value),
                None => self.unbind(DeviceOffset(offset)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_word_follows_writes_to_device_memory() {
        let mut table = WordTable::default();
        let word = DeviceOffset(100);
        let index = table.bind(word).unwrap();
        let mut seen = Vec::new();
        table.written(DeviceOffset(96), &[0, 0, 0, 0, 7, 0, 0, 0, 1], |index, value| seen.push((index, value)));
        table.filled(DeviceOffset(100), 1, 4, |index, value| seen.push((index, value)));
        table.written(DeviceOffset(104), &[1; 8], |index, value| seen.push((index, value)));
        table.written(DeviceOffset(90), &[1; 10], |index, value| seen.push((index, value)));
        assert_eq!(seen, [(index, 7), (index, 0x0101_0101)]);
        assert_eq!(table.find(word), Some(index));
    }

    #[test]
    fn a_word_that_is_written_in_part_is_unbound() {
        for (at, bytes) in [(97, 4), (103, 1), (100, 3)] {
            let mut table = WordTable::default();
            let index = table.bind(DeviceOffset(100)).unwrap();
            table.filled(DeviceOffset(at), 1, bytes, |_, _| panic!("the word was written only in part"));
            assert_eq!(table.find(DeviceOffset(100)), None);
            assert_eq!(table.bind(DeviceOffset(8)), Some(index), "it is free again");
        }
        let mut table = WordTable::default();
        assert!((0..WORDS_MAX as u64).all(|at| table.bind(DeviceOffset(at * 4)).is_some()));
        assert_eq!(table.bind(DeviceOffset(1 << 20)), None);
        table.forget(DeviceOffset(0), 8);
        assert!(table.bind(DeviceOffset(1 << 20)).is_some() && table.bind(DeviceOffset(1 << 21)).is_some());
    }
}
