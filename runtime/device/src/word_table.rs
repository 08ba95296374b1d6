//! Which epoch words have a word of host memory too, and how that keeps saying the same.
//!
//! The engine names an epoch word by its offset in device memory. From when it gets a word of host
//! memory on, both change together: whatever the engine writes to the one is written to the other.

use atoll_core::DeviceOffset;
use std::collections::BTreeMap;

/// Words in host memory. Instances of functions keep theirs, so this is far above what is used;
/// beyond it kernels look at device memory.
pub const WORDS_MAX: usize = 1 << 14;

/// Words of host memory by offset in device memory.
#[derive(Debug)]
pub struct WordTable {
    by_offset: BTreeMap<u64, usize>,
    free: Vec<usize>,
}

impl Default for WordTable {
    /// No offset has a word.
    fn default() -> WordTable {
        WordTable { by_offset: BTreeMap::new(), free: (0..WORDS_MAX).rev().collect() }
    }
}

impl WordTable {
    /// The word of an offset, where it has one.
    pub fn find(&self, word: DeviceOffset) -> Option<usize> {
        self.by_offset.get(&word.0).copied()
    }

    /// Gives an offset a word, which is to be set to what device memory says; `None` where all are
    /// taken.
    pub fn bind(&mut self, word: DeviceOffset) -> Option<usize> {
        let index = self.free.pop()?;
        self.by_offset.insert(word.0, index);
        Some(index)
    }

    /// Takes the word of an offset away.
    pub fn unbind(&mut self, word: DeviceOffset) {
        self.free.extend(self.by_offset.remove(&word.0));
    }

    /// All words that offsets have.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.by_offset.values().copied()
    }

    /// Device memory was written: `set` is told of words that have another value now. Those that
    /// were written in part lose theirs, as no launch in flight uses them.
    pub fn written(&mut self, at: DeviceOffset, bytes: &[u8], set: impl FnMut(usize, u32)) {
        let value = |within: usize| bytes.get(within..within + 4)?.try_into().ok().map(u32::from_ne_bytes);
        self.change(at, bytes.len() as u64, value, set);
    }

    /// Device memory was filled; as [`WordTable::written`].
    pub fn filled(&mut self, at: DeviceOffset, byte: u8, bytes: u64, set: impl FnMut(usize, u32)) {
        let value = |within: usize| (within as u64 + 4 <= bytes).then_some(u32::from_ne_bytes([byte; 4]));
        self.change(at, bytes, value, set);
    }

    /// Device memory was changed in a way nobody followed.
    pub fn forget(&mut self, at: DeviceOffset, bytes: u64) {
        self.change(at, bytes, |_| None, |_, _| {});
    }

    /// `value` says what the word that begins so many bytes into the range is now, if all of it
    /// lies there.
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
    fn a_word_follows_what_is_written_over_it() {
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
    fn a_word_that_is_written_in_part_is_forgotten() {
        for (at, bytes) in [(97, 4), (103, 1), (100, 3)] {
            let mut table = WordTable::default();
            let index = table.bind(DeviceOffset(100)).unwrap();
            table.filled(DeviceOffset(at), 1, bytes, |_, _| panic!("it was not written whole"));
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
