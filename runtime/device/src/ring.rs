//! A bounded ring with one producer and one consumer, in memory shared by two processes.
//!
//! Records have `W` 64-bit words. An *arena* beside the ring has `A` more words for each slot, for
//! data that most records lack; they are valid as long as the slot is in use. Nothing in the ring
//! is a pointer, so each process may map it anywhere. Each side keeps its own index in private
//! memory and only publishes it. The peer's index is read once and checked before use: a peer that
//! breaks the protocol causes [`Corrupt`], never undefined behaviour. All accesses are atomic. If a
//! broken peer overwrites a record while it is read, the result is a wrong record, which the reader
//! has to validate anyway.
//!
//! Not here: waiting. A full or empty ring returns at once; see `doorbell` for wake-ups.

use crate::shm::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The producer's index is at the start of the ring. The consumer's index is two cache lines after
/// it, since adjacent lines are prefetched in pairs. The records follow.
const TAIL_WORD: usize = 0;
const HEAD_WORD: usize = 16;
const HEADER_WORDS: usize = 32;

/// Bytes of a ring with `capacity` records of `W` words and `A` arena words for each.
pub const fn ring_bytes<const W: usize, const A: usize>(capacity: u32) -> u64 {
    let words = HEADER_WORDS as u64 + (W + A) as u64 * capacity.next_power_of_two() as u64;
    (words * 8).next_multiple_of(128)
}

/// The peer published an index that is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is corrupt: the peer's index {theirs} does not go with ours, {ours}")]
pub struct Corrupt {
    /// Our index.
    pub ours: u64,
    /// The index that the peer published.
    pub theirs: u64,
}

/// Why a record was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No free slot.
    #[error("the ring is full")]
    Full,
    /// The consumer broke the protocol.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// The location of one ring inside a region; both ends hold one.
#[derive(Debug)]
struct Place<const W: usize, const A: usize> {
    region: Arc<Region>,
    at: u64,
    slots: u64,
    words: usize,
}

impl<const W: usize, const A: usize> Place<W, A> {
    /// `None` if the ring does not fit into the region.
    fn new(region: Arc<Region>, at: u64, capacity: u32) -> Option<Self> {
        let slots = capacity.max(1).next_power_of_two();
        let words = HEADER_WORDS + (W + A) * slots as usize;
        region.words(at, words)?;
        Some(Place { region, at, slots: u64::from(slots), words })
    }

    fn all(&self) -> &[AtomicU64] {
        // Checked once in `new`; the region never shrinks.
        self.region.words(self.at, self.words).unwrap_or(&[])
    }

    fn slot(&self, index: u64) -> Slot<'_> {
        let index = (index & (self.slots - 1)) as usize;
        let (words, arena) = (HEADER_WORDS + index * W, HEADER_WORDS + self.slots as usize * W + index * A);
        let all = self.all();
        Slot { words: &all[words..words + W], arena: &all[arena..arena + A] }
    }
}

/// A slot of a ring: the words of its record, followed by its words in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    words: &'a [AtomicU64],
    arena: &'a [AtomicU64],
}

impl Slot<'_> {
    /// Writes words, starting at word `at`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn store(&self, at: usize, values: impl IntoIterator<Item = u64>) {
        let inline = self.words.get(at..).unwrap_or_default();
        let behind = &self.arena[at.saturating_sub(self.words.len())..];
        let mut words = inline.iter().chain(behind);
        for value in values {
            words.next().expect("a slot has room for what is put there").store(value, Ordering::Relaxed);
        }
    }

    /// Reads a word.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn load(&self, at: usize) -> u64 {
        let word = self.words.get(at).unwrap_or_else(|| &self.arena[at - self.words.len()]);
        word.load(Ordering::Relaxed)
    }
}

/// The end that appends records.
#[derive(Debug)]
pub struct Producer<const W: usize, const A: usize = 0> {
    place: Place<W, A>,
    tail: u64,
    head_seen: u64,
}

impl<const W: usize, const A: usize> Producer<W, A> {
    /// The producer of the ring at offset `at` in zeroed memory; `None` if the ring does not fit.
    /// There must be only one per ring.
    pub fn new(region: Arc<Region>, at: u64, capacity: u32) -> Option<Self> {
        Some(Producer { place: Place::new(region, at, capacity)?, tail: 0, head_seen: 0 })
    }

    /// Appends a record.
    pub fn push(&mut self, record: &[u64; W]) -> Result<(), PushError> {
        self.push_with(|slot| slot.store(0, *record))
    }

    /// Appends a record that `write` stores into its slot. `write` is not called if the ring is
    /// full.
    pub fn push_with(&mut self, write: impl FnOnce(&Slot<'_>)) -> Result<(), PushError> {
        if self.tail - self.head_seen == self.place.slots {
            self.look_at_head()?;
        }
        write(&self.place.slot(self.tail));
        self.tail += 1;
        self.place.all()[TAIL_WORD].store(self.tail, Ordering::Release);
        Ok(())
    }

    fn look_at_head(&mut self) -> Result<(), PushError> {
        let head = self.place.all()[HEAD_WORD].load(Ordering::Acquire);
        if head < self.head_seen || head > self.tail {
            return Err(Corrupt { ours: self.tail, theirs: head }.into());
        }
        self.head_seen = head;
        if self.tail - head == self.place.slots { Err(PushError::Full) } else { Ok(()) }
    }
}

/// The end that removes records.
#[derive(Debug)]
pub struct Consumer<const W: usize, const A: usize = 0> {
    place: Place<W, A>,
    head: u64,
    tail_seen: u64,
}

impl<const W: usize, const A: usize> Consumer<W, A> {
    /// The consumer of the ring at offset `at` in zeroed memory; `None` if the ring does not fit.
    /// There must be only one per ring.
    pub fn new(region: Arc<Region>, at: u64, capacity: u32) -> Option<Self> {
        Some(Consumer { place: Place::new(region, at, capacity)?, head: 0, tail_seen: 0 })
    }

    /// Takes the oldest record.
    pub fn pop(&mut self) -> Result<Option<[u64; W]>, Corrupt> {
        self.pop_with(|slot| std::array::from_fn(|at| slot.load(at)))
    }

    /// Removes the oldest record, as `read` loads it from its slot. The slot is free afterwards.
    pub fn pop_with<T>(&mut self, read: impl FnOnce(&Slot<'_>) -> T) -> Result<Option<T>, Corrupt> {
        if self.is_empty()? {
            return Ok(None);
        }
        let record = read(&self.place.slot(self.head));
        self.head += 1;
        self.place.all()[HEAD_WORD].store(self.head, Ordering::Release);
        Ok(Some(record))
    }

    /// Whether the ring holds no record.
    pub fn is_empty(&mut self) -> Result<bool, Corrupt> {
        if self.head != self.tail_seen {
            return Ok(false);
        }
        let tail = self.place.all()[TAIL_WORD].load(Ordering::Acquire);
        if tail < self.tail_seen || tail - self.head > self.place.slots {
            return Err(Corrupt { ours: self.head, theirs: tail });
        }
        self.tail_seen = tail;
        Ok(self.head == tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Two mappings of the same memory, as two processes would have them.
    fn pair<const W: usize>(capacity: u32) -> (Producer<W>, Consumer<W>) {
        let ours = Arc::new(Region::create("ring", ring_bytes::<W, 0>(capacity)).unwrap());
        let theirs = Arc::new(Region::attach(ours.as_fd().try_clone_to_owned().unwrap()).unwrap());
        (Producer::new(ours, 0, capacity).unwrap(), Consumer::new(theirs, 0, capacity).unwrap())
    }

    #[test]
    fn records_come_out_in_order_and_full_means_full() {
        let (mut producer, mut consumer) = pair::<3>(4);
        assert_eq!(consumer.pop(), Ok(None));
        for round in 0..10u64 {
            for i in 0..4 {
                producer.push(&[round, i, round * i]).unwrap();
            }
            assert_eq!(producer.push(&[0; 3]), Err(PushError::Full));
            for i in 0..4 {
                assert_eq!(consumer.pop(), Ok(Some([round, i, round * i])));
            }
            assert_eq!(consumer.pop(), Ok(None));
        }
    }

    #[test]
    fn a_ring_must_fit() {
        let region = Arc::new(Region::create("ring", ring_bytes::<3, 0>(4)).unwrap());
        assert!(Producer::<3>::new(region.clone(), 0, 4).is_some());
        assert!(Producer::<3>::new(region.clone(), 0, 32).is_none());
        assert!(Consumer::<3>::new(region.clone(), 128, 4).is_none());
        assert!(Consumer::<3>::new(region, 4, 1).is_none());
    }

    #[test]
    fn two_threads_and_two_million_records() {
        const COUNT: u64 = 2_000_000;
        let (mut producer, mut consumer) = pair::<4>(64);
        let sender = std::thread::spawn(move || {
            let mut next = 0u64;
            while next < COUNT {
                let record = [next, !next, next.wrapping_mul(0x9e37_79b9_7f4a_7c15), next ^ 0x5555];
                match producer.push(&record) {
                    Ok(()) => next += 1,
                    Err(PushError::Full) => std::thread::yield_now(),
                    Err(PushError::Corrupt(e)) => panic!("{e}"),
                }
            }
        });
        let mut next = 0u64;
        while next < COUNT {
            match consumer.pop().unwrap() {
                Some(record) => {
                    assert_eq!(record, [next, !next, next.wrapping_mul(0x9e37_79b9_7f4a_7c15), next ^ 0x5555]);
                    next += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        assert_eq!(consumer.pop(), Ok(None));
        sender.join().unwrap();
    }

    #[test]
    fn a_wrong_index_from_the_peer_is_detected() {
        let region = Arc::new(Region::create("ring", ring_bytes::<1, 0>(4)).unwrap());
        let peer = region.clone();
        let index =
            |word: usize, value: u64| peer.words(0, HEADER_WORDS).unwrap()[word].store(value, Ordering::Release);

        let mut consumer = Consumer::<1>::new(region.clone(), 0, 4).unwrap();
        for lie in [5, 1 << 40, u64::MAX] {
            index(TAIL_WORD, lie);
            assert_eq!(consumer.pop(), Err(Corrupt { ours: 0, theirs: lie }));
        }
        index(TAIL_WORD, 2);
        assert!(consumer.pop().unwrap().is_some() && consumer.pop().unwrap().is_some());
        index(TAIL_WORD, 1);
        assert_eq!(consumer.pop(), Err(Corrupt { ours: 2, theirs: 1 }), "an index never goes back");

        index(TAIL_WORD, 0);
        let mut producer = Producer::<1>::new(region, 0, 4).unwrap();
        (0..4).for_each(|i| producer.push(&[i]).unwrap());
        for lie in [5, u64::MAX] {
            index(HEAD_WORD, lie);
            assert_eq!(producer.push(&[9]), Err(PushError::Corrupt(Corrupt { ours: 4, theirs: lie })));
        }
        index(HEAD_WORD, 2);
        producer.push(&[4]).unwrap();
        producer.push(&[5]).unwrap();
        index(HEAD_WORD, 1);
        assert!(matches!(producer.push(&[6]), Err(PushError::Corrupt(_))));
    }
}
