//! Parameter blocks: their bytes, and which of them are addresses.

use atoll_core::DeviceOffset;

/// Largest parameter block of a launch in bytes.
pub const PARAMS_BYTES_MAX: usize = atoll_kgraph::validate::PARAMS_BYTES_MAX as usize;

/// Most slots of eight bytes in a parameter block.
pub const PARAM_SLOTS_MAX: usize = PARAMS_BYTES_MAX / 8;

/// Words of a bit set of slots.
pub(crate) const SLOT_WORDS: usize = PARAM_SLOTS_MAX / 64;

/// The slots of eight bytes in a parameter block that name places in device memory.
///
/// Each slot holds a [`DeviceOffset`], which the device relocates to an address; or all of them
/// hold addresses as kernels see them ([`AddressSlots::absolute`]), which the device only checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressSlots {
    words: [u64; SLOT_WORDS],
    is_absolute: bool,
}

impl AddressSlots {
    /// No slot.
    pub const NONE: AddressSlots = AddressSlots { words: [0; SLOT_WORDS], is_absolute: false };

    pub(crate) fn from_words(words: [u64; SLOT_WORDS], is_absolute: bool) -> AddressSlots {
        AddressSlots { words, is_absolute }
    }

    pub(crate) fn words(&self) -> &[u64; SLOT_WORDS] {
        &self.words
    }

    /// The same slots, holding addresses instead of offsets.
    #[must_use]
    pub fn absolute(self) -> AddressSlots {
        AddressSlots { is_absolute: true, ..self }
    }

    /// Whether the slots hold addresses instead of offsets.
    pub fn are_absolute(&self) -> bool {
        self.is_absolute
    }

    /// Adds a slot.
    ///
    /// # Panics
    /// If no parameter block has such a slot.
    pub fn insert(&mut self, slot: usize) {
        self.words[slot / 64] |= 1 << (slot % 64);
    }

    /// Whether the set contains a slot.
    pub fn contains(&self, slot: usize) -> bool {
        self.words.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// All slots, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.words;
        (0..SLOT_WORDS).filter(move |index| words[*index] != 0).flat_map(move |index| {
            let mut word = words[index];
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(index * 64 + bit)
            })
        })
    }

    /// Adds the slots of a block that begins `by` slots into this one.
    ///
    /// # Panics
    /// If no parameter block has such slots.
    pub fn extend_shifted(&mut self, other: &AddressSlots, by: usize) {
        other.iter().for_each(|slot| self.insert(slot + by));
    }

    /// The slots before `end`.
    #[must_use]
    pub fn before(self, end: usize) -> AddressSlots {
        let mut kept = AddressSlots { is_absolute: self.is_absolute, ..AddressSlots::NONE };
        self.iter().take_while(|slot| *slot < end).for_each(|slot| kept.insert(slot));
        kept
    }
}

impl FromIterator<usize> for AddressSlots {
    /// # Panics
    /// If no parameter block has one of the slots.
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> AddressSlots {
        let mut set = AddressSlots::NONE;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// A cache line of parameters.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line([u64; LINE_WORDS]);

const LINE_WORDS: usize = 8;

/// Blocks of up to 512 bytes are stored inline: most are far smaller, and an allocation would cost
/// more than everything else done with a block.
const SMALL_LINES: usize = 8;

/// A parameter block, zero behind its end. It is aligned to a cache line, so kernels may load
/// vectors from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamBlock(Lines);

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all blocks are small and are not moved")]
enum Lines {
    Small([Line; SMALL_LINES]),
    Large(Box<[Line]>),
}

impl ParamBlock {
    /// A zeroed block of at least `bytes` bytes.
    pub fn zeroed(bytes: usize) -> ParamBlock {
        let lines = bytes.div_ceil(LINE_WORDS * 8);
        ParamBlock(if lines <= SMALL_LINES {
            Lines::Small([Line::default(); SMALL_LINES])
        } else {
            Lines::Large(vec![Line::default(); lines].into())
        })
    }

    /// A block with these bytes.
    pub fn from_bytes(bytes: &[u8]) -> ParamBlock {
        let mut block = ParamBlock::zeroed(bytes.len());
        words_of(bytes).enumerate().for_each(|(slot, word)| block.set(slot, word));
        block
    }

    /// The first `bytes` bytes.
    ///
    /// # Panics
    /// If the block is shorter.
    pub fn to_bytes(&self, bytes: usize) -> Vec<u8> {
        let mut all: Vec<u8> = (0..bytes.div_ceil(8))
            .flat_map(|slot| self.lines()[slot / LINE_WORDS].0[slot % LINE_WORDS].to_ne_bytes())
            .collect();
        all.truncate(bytes);
        all
    }

    /// The value of a slot; `None` behind the end of the block.
    pub fn get(&self, slot: usize) -> Option<u64> {
        self.lines().get(slot / LINE_WORDS).map(|line| line.0[slot % LINE_WORDS])
    }

    /// Sets the value of a slot.
    ///
    /// # Panics
    /// If the slot is behind the end of the block.
    pub fn set(&mut self, slot: usize, value: u64) {
        self.lines_mut()[slot / LINE_WORDS].0[slot % LINE_WORDS] = value;
    }

    /// The block's address in this process; valid until the block is moved.
    pub fn address(&self) -> u64 {
        self.lines().as_ptr() as u64
    }

    fn lines(&self) -> &[Line] {
        match &self.0 {
            Lines::Small(lines) => lines,
            Lines::Large(lines) => lines,
        }
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        match &mut self.0 {
            Lines::Small(lines) => lines,
            Lines::Large(lines) => lines,
        }
    }
}

/// Bytes as slots; the last one is padded with zeros.
pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(8).map(|chunk| {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(whole)
    })
}

/// Translates the device offsets in a parameter block. Returns `None` if `translate` does for one
/// of them. Slots outside the block are skipped: the device refuses such a launch.
pub fn translate_offsets(
    params: &mut [u8],
    slots: &AddressSlots,
    translate: impl Fn(DeviceOffset) -> Option<DeviceOffset>,
) -> Option<()> {
    for slot in slots.iter() {
        let Some(bytes) = params.get_mut(slot * 8..slot * 8 + 8) else { continue };
        let offset = u64::from_ne_bytes(<[u8; 8]>::try_from(&*bytes).ok()?);
        bytes.copy_from_slice(&translate(DeviceOffset(offset))?.0.to_ne_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_the_slots_that_were_inserted() {
        let slots = [0, 7, 63, 64, 300, PARAM_SLOTS_MAX - 1];
        let set: AddressSlots = slots.into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), slots);
        assert!(slots.into_iter().all(|slot| set.contains(slot)));
        assert!(![1, 62, 65, PARAM_SLOTS_MAX, usize::MAX].into_iter().any(|slot| set.contains(slot)));
        assert_eq!(set.before(64).iter().collect::<Vec<_>>(), [0, 7, 63]);
        let mut shifted = AddressSlots::NONE;
        shifted.extend_shifted(&set.before(64), 2);
        assert_eq!(shifted.iter().collect::<Vec<_>>(), [2, 9, 65]);
        assert!(set.absolute().before(8).are_absolute() && !set.are_absolute());
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn slots_behind_the_largest_block_panic() {
        AddressSlots::NONE.clone().insert(PARAM_SLOTS_MAX);
    }

    #[test]
    fn a_block_holds_its_bytes_with_zero_padding_and_is_aligned() {
        for bytes in [0, 1, 8, 511, 512, 513, 4095, PARAMS_BYTES_MAX] {
            let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8 + 1).collect();
            let block = ParamBlock::from_bytes(&data);
            assert_eq!(block.to_bytes(bytes), data, "{bytes} bytes");
            assert!(block.address().is_multiple_of(64));
            let end = bytes.next_multiple_of(64);
            assert!((bytes.div_ceil(8)..end / 8).all(|slot| block.get(slot) == Some(0)), "{bytes} bytes");
            assert_eq!(block.get(PARAM_SLOTS_MAX), None);
        }
    }

    #[test]
    fn only_offsets_are_translated() {
        let mut params: Vec<u8> = [1u64, 2, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let slots: AddressSlots = [1, 400].into_iter().collect();
        let moved = translate_offsets(&mut params, &slots, |at| Some(DeviceOffset(at.0 + 100)));
        assert_eq!((moved, words_of(&params).collect::<Vec<_>>()), (Some(()), vec![1, 102, 3]));
        assert_eq!(translate_offsets(&mut params, &slots, |_| None), None);
    }
}
