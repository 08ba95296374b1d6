//! A set of devices as a bitmap.

use crate::ids::DeviceId;

const BITS: usize = 64;

/// A set of devices. Searches and iterations take time proportional to the highest id divided by
/// 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceSet {
    words: Vec<u64>,
    len: usize,
}

impl DeviceSet {
    fn place(device: DeviceId) -> (usize, u64) {
        (usize::from(device.0) / BITS, 1 << (usize::from(device.0) % BITS))
    }

    /// Adds or removes a device.
    pub(super) fn set(&mut self, device: DeviceId, member: bool) {
        let (word, bit) = DeviceSet::place(device);
        if word >= self.words.len() {
            if !member {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word] & bit != 0;
        if member && !before {
            self.len += 1;
        } else if before && !member {
            self.len -= 1;
        }
        self.words[word] = if member { self.words[word] | bit } else { self.words[word] & !bit };
    }

    pub(super) fn contains(&self, device: DeviceId) -> bool {
        let (word, bit) = DeviceSet::place(device);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The members, by ascending id.
    pub(super) fn iter(&self) -> impl Iterator<Item = DeviceId> {
        self.words.iter().enumerate().flat_map(|(index, &word)| bits(index, word))
    }

    /// The devices that are in both sets, by ascending id.
    pub(super) fn both<'a>(&'a self, other: &'a DeviceSet) -> impl Iterator<Item = DeviceId> + 'a {
        let words = self.words.iter().zip(&other.words);
        words.enumerate().flat_map(|(index, (a, b))| bits(index, a & b))
    }

    /// The first member whose id is at least `start`; if there is none, the lowest member.
    pub(super) fn first_from(&self, start: u32) -> Option<DeviceId> {
        if self.is_empty() {
            return None;
        }
        let (first, bit) = (start as usize / BITS, start as usize % BITS);
        let rest = self.words.get(first).map_or(0, |word| word & (u64::MAX << bit));
        let later = self.words.iter().enumerate().skip(first + 1).map(|(index, &word)| (index, word));
        let all = self.words.iter().enumerate().map(|(index, &word)| (index, word));
        let (index, word) = std::iter::once((first, rest)).chain(later).chain(all).find(|(_, word)| *word != 0)?;
        Some(id(index, word.trailing_zeros()))
    }
}

fn id(index: usize, bit: u32) -> DeviceId {
    DeviceId((index * BITS) as u16 + bit as u16)
}

fn bits(index: usize, mut word: u64) -> impl Iterator<Item = DeviceId> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(id(index, bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn a_bitmap_answers_as_a_set_of_numbers() {
        let mut rng = Rng::new(1);
        let (mut set, mut model) = (DeviceSet::default(), BTreeSet::new());
        let (mut other, mut other_model) = (DeviceSet::default(), BTreeSet::new());
        for _ in 0..4000 {
            let (device, member) = (DeviceId(rng.below(300) as u16), rng.one_in(2));
            set.set(device, member);
            if member {
                model.insert(device)
            } else {
                model.remove(&device)
            };
            let device = DeviceId(rng.below(200) as u16);
            other.set(device, true);
            other_model.insert(device);
            let start = rng.below(400) as u32;
            let after = model.range(DeviceId(start as u16)..).next().or(model.first());
            assert_eq!(set.first_from(start), after.copied(), "from {start}");
            assert_eq!((set.len(), set.contains(device)), (model.len(), model.contains(&device)));
        }
        assert!(set.iter().eq(model.iter().copied()));
        assert!(set.both(&other).eq(model.intersection(&other_model).copied()));
        let top = DeviceId(u16::MAX);
        set.set(top, true);
        assert_eq!(set.first_from(400), Some(top));
    }
}
