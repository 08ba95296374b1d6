//! A set of devices or functions as a bitmap.

use super::event::{FunctionId, GroupId};
use crate::ids::DeviceId;
use std::marker::PhantomData;

const BITS: usize = 64;

/// An id whose numbers the caller counts up, so that arrays can be indexed by it.
pub(super) trait Id: Copy {
    fn index(self) -> usize;

    /// The id with an index that [`Id::index`] returned.
    fn at(index: usize) -> Self;
}

macro_rules! counted_ids {
    ($($id:ident($number:ty)),*) => {
        $(impl Id for $id {
            fn index(self) -> usize {
                self.0 as usize
            }

            fn at(index: usize) -> $id {
                $id(index as $number)
            }
        })*
    };
}

counted_ids!(DeviceId(u16), FunctionId(u32), GroupId(u32));

/// A set of devices.
pub(super) type DeviceSet = IdSet<DeviceId>;
/// A set of functions.
pub(super) type FunctionSet = IdSet<FunctionId>;

/// A set of ids. Its memory is proportional to the highest id. A search reads one word of each
/// level, and one more for every 4,096 ids that are not in the set.
#[derive(Clone, Debug)]
pub(super) struct IdSet<I> {
    words: Vec<u64>,
    /// A bit for each word: whether it has members.
    used: Vec<u64>,
    len: usize,
    ids: PhantomData<I>,
}

impl<I> Default for IdSet<I> {
    fn default() -> IdSet<I> {
        IdSet { words: Vec::new(), used: Vec::new(), len: 0, ids: PhantomData }
    }
}

impl<I: Id> IdSet<I> {
    /// Adds or removes an id.
    pub(super) fn set(&mut self, id: I, member: bool) {
        if self.contains(id) != member {
            self.change(id, member);
        }
    }

    fn change(&mut self, id: I, member: bool) {
        let (at, bit) = (id.index() / BITS, 1 << (id.index() % BITS));
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
            self.used.resize(at / BITS + 1, 0);
        }
        let word = &mut self.words[at];
        *word ^= bit;
        self.len = if member { self.len + 1 } else { self.len - 1 };
        let (used, bit) = (&mut self.used[at / BITS], 1 << (at % BITS));
        *used = if *word == 0 { *used & !bit } else { *used | bit };
    }

    pub(super) fn contains(&self, id: I) -> bool {
        self.words.get(id.index() / BITS).is_some_and(|word| word & (1 << (id.index() % BITS)) != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The members, by ascending id.
    pub(super) fn iter(&self) -> impl Iterator<Item = I> {
        ids(indexes(self.used.iter().copied()).map(move |at| (at, self.words[at])))
    }

    /// Calls `visit` with the members of both sets, by ascending id. A long loop is faster than with
    /// [`IdSet::both`].
    pub(super) fn for_each_of_both(&self, other: &IdSet<I>, mut visit: impl FnMut(I)) {
        let used = self.used.iter().zip(&other.used).map(|(a, b)| a & b);
        for at in indexes(used) {
            let mut word = self.words[at] & other.words[at];
            while word != 0 {
                visit(I::at(at * BITS + word.trailing_zeros() as usize));
                word &= word - 1;
            }
        }
    }

    /// The members of both sets, by ascending id.
    pub(super) fn both<'a>(&'a self, other: &'a IdSet<I>) -> impl Iterator<Item = I> + 'a {
        let used = self.used.iter().zip(&other.used).map(|(a, b)| a & b);
        ids(indexes(used).map(move |at| (at, self.words[at] & other.words[at])))
    }

    /// The members of either set, by ascending id.
    pub(super) fn either<'a>(&'a self, other: &'a IdSet<I>) -> impl Iterator<Item = I> + 'a {
        let word = |words: &[u64], at: usize| words.get(at).copied().unwrap_or_default();
        let used =
            (0..self.used.len().max(other.used.len())).map(move |at| word(&self.used, at) | word(&other.used, at));
        ids(indexes(used).map(move |at| (at, word(&self.words, at) | word(&other.words, at))))
    }

    /// All members once, starting with the first one whose number is at least `start`, and
    /// continuing with the lowest one after the highest one.
    pub(super) fn cycle_from(&self, start: u32) -> impl Iterator<Item = I> {
        let (first, mask) = (start as usize / BITS, u64::MAX << (start as usize % BITS));
        let word = move |at: usize| self.words.get(at).copied().unwrap_or_default();
        let others = (first + 1..self.words.len()).chain(0..first.min(self.words.len()));
        let begin = std::iter::once((first, word(first) & mask));
        ids(begin.chain(others.map(move |at| (at, word(at)))).chain([(first, word(first) & !mask)]))
    }

    /// The first member whose number is at least `start`; if there is none, the lowest member.
    pub(super) fn first_from(&self, start: u32) -> Option<I> {
        if self.is_empty() {
            return None;
        }
        let start = start as usize;
        let first = start / BITS;
        let rest = self.words.get(first).map_or(0, |word| word & (u64::MAX << (start % BITS)));
        let (at, word) = match rest {
            0 => {
                let at = self.used_from(first + 1).or_else(|| self.used_from(0));
                let at = at.expect("a set that is not empty has a word with members");
                (at, self.words[at])
            }
            rest => (first, rest),
        };
        Some(I::at(at * BITS + word.trailing_zeros() as usize))
    }

    /// The first word with members whose index is at least `start`.
    fn used_from(&self, start: usize) -> Option<usize> {
        let first = start / BITS;
        let rest = self.used.get(first)? & (u64::MAX << (start % BITS));
        let later = self.used.iter().copied().enumerate().skip(first + 1);
        let (at, word) = std::iter::once((first, rest)).chain(later).find(|(_, word)| *word != 0)?;
        Some(at * BITS + word.trailing_zeros() as usize)
    }
}

/// The indexes of the bits that are set in a row of words.
fn indexes(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    bits(words.enumerate())
}

/// The ids of the bits that are set in words, which come with their indexes.
fn ids<I: Id>(words: impl Iterator<Item = (usize, u64)>) -> impl Iterator<Item = I> {
    bits(words).map(I::at)
}

fn bits(mut words: impl Iterator<Item = (usize, u64)>) -> impl Iterator<Item = usize> {
    let (mut at, mut word) = (0, 0_u64);
    std::iter::from_fn(move || {
        while word == 0 {
            (at, word) = words.next()?;
        }
        let bit = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(at * BITS + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn a_bitmap_answers_as_a_set_of_numbers() {
        // Many ids in few words, and few in many.
        for (ids, others, rounds) in [(300, 200, 4000), (60_000, 9000, 300)] {
            let mut rng = Rng::new(1);
            let (mut set, mut model) = (DeviceSet::default(), BTreeSet::new());
            let (mut other, mut other_model) = (DeviceSet::default(), BTreeSet::new());
            for _ in 0..rounds {
                let (device, member) = (DeviceId(rng.below(ids) as u16), rng.one_in(2));
                set.set(device, member);
                if member {
                    model.insert(device)
                } else {
                    model.remove(&device)
                };
                let device = DeviceId(rng.below(others) as u16);
                other.set(device, true);
                other_model.insert(device);
                let start = rng.below(ids + 100) as u32;
                let after = model.range(DeviceId(start as u16)..).next().or(model.first());
                assert_eq!(set.first_from(start), after.copied(), "from {start}");
                assert_eq!(set.cycle_from(start).next(), after.copied(), "from {start}");
                assert_eq!((set.len(), set.contains(device)), (model.len(), model.contains(&device)));
            }
            assert!(set.iter().eq(model.iter().copied()));
            let mut visited = Vec::new();
            set.for_each_of_both(&other, |device| visited.push(device));
            assert!(visited.into_iter().eq(set.both(&other)));
            assert!(set.both(&other).eq(model.intersection(&other_model).copied()));
            assert!(other.both(&set).eq(set.both(&other)));
            assert!(set.either(&other).eq(model.union(&other_model).copied()));
            assert!(other.either(&set).eq(set.either(&other)));
            for start in [0, 63, 64, 100, 255, ids as u32 / 2, ids as u32, 70_000] {
                let cycle = (u64::from(start)..ids.max(u64::from(start))).chain(0..ids.min(u64::from(start)));
                let members = cycle.map(|id| DeviceId(id as u16)).filter(|id| model.contains(id));
                assert!(set.cycle_from(start).eq(members), "from {start}");
            }
            let last = model.last().copied();
            while let Some(device) = model.pop_first() {
                set.set(device, false);
                assert_eq!(set.first_from(0), model.first().copied());
            }
            assert!(set.is_empty() && set.iter().next().is_none() && last.is_some());
        }
        let mut set = DeviceSet::default();
        let top = DeviceId(u16::MAX);
        set.set(top, true);
        assert_eq!((set.first_from(400), set.first_from(u32::from(u16::MAX) + 1)), (Some(top), Some(top)));
    }
}
