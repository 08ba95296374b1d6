//! Sets of compute units.

/// A set of compute units, as the library takes it: bit n of the words is compute unit n. A stream
/// with a mask runs its blocks on these units only.
///
/// The order of the bits is the library's. It spreads consecutive units over the shader engines, so
/// a range of units is a fair share of each engine. On RDNA two units form a workgroup processor
/// and are masked together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitMask {
    words: Vec<u32>,
}

impl UnitMask {
    /// A mask of these units; `None` if there are none.
    pub fn new(units: impl IntoIterator<Item = u32>) -> Option<UnitMask> {
        let mut words: Vec<u32> = Vec::new();
        for unit in units {
            let word = unit as usize / 32;
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (unit % 32);
        }
        (!words.is_empty()).then_some(UnitMask { words })
    }

    /// A mask of words from the library.
    pub(crate) fn of_words(words: Vec<u32>) -> UnitMask {
        UnitMask { words }
    }

    /// Its words.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Number of units.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The units, ascending.
    pub fn units(&self) -> impl Iterator<Item = u32> {
        let bits = self.words.iter().enumerate().flat_map(|(at, word)| (0..32).map(move |bit| (at, *word, bit)));
        bits.filter(|(_, word, bit)| word >> bit & 1 == 1).map(|(at, _, bit)| at as u32 * 32 + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_one_bit_per_unit() {
        let mask = UnitMask::new([0, 31, 32, 70, 70]).expect("units");
        assert_eq!(mask.words(), [1 << 31 | 1, 1, 1 << 6]);
        assert_eq!((mask.count(), mask.units().collect::<Vec<_>>()), (4, vec![0, 31, 32, 70]));
        assert_eq!(UnitMask::new([]), None);
    }
}
