//! Chunks, for observers: the blocks that each compute unit ran. Each compute unit has a ring in
//! the shared memory.
//!
//! The compute unit is the only writer of its ring. It overwrites the oldest records when the ring
//! is full, so a slow reader never delays it. A record is a cache line that starts with its
//! sequence number. The number is zero while the record is being written, and the reader checks it
//! before and after reading. The reader validates everything: after a count that goes backwards, an
//! invalid record or a wrong sequence number, chunks of this compute unit are lost, and nothing
//! else is affected.

use crate::record::{ChunkEnd, ChunkRecord, ComputeUnitUse};
use crate::shm::Region;
use atoll_core::{LaunchId, QueueId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Capacity of a ring in chunks: 0.2 s of ordinary ones, 10 ms of the shortest. A ring takes 256
/// KiB.
const CHUNKS_KEPT: u64 = 4096;

/// Sequence number, chunk, padding: one cache line.
const RECORD_WORDS: usize = 8;

/// The number of chunks and their total time, in a cache line of their own and the adjacent one,
/// which is prefetched with it.
const HEADER_WORDS: usize = 16;
const COUNT_WORD: usize = 0;
const BUSY_WORD: usize = 1;

const WORDS: usize = HEADER_WORDS + CHUNKS_KEPT as usize * RECORD_WORDS;

/// Size of the ring of one compute unit.
pub(super) const CHUNKS_BYTES: u64 = WORDS as u64 * 8;

/// The location of one compute unit's ring.
#[derive(Debug)]
struct Track {
    region: Arc<Region>,
    at: u64,
}

impl Track {
    fn words(&self) -> &[AtomicU64] {
        self.region.words(self.at, WORDS).expect("the link reserved the chunk rings")
    }

    fn slot(&self, index: u64) -> &[AtomicU64] {
        let first = HEADER_WORDS + (index % CHUNKS_KEPT) as usize * RECORD_WORDS;
        &self.words()[first..first + RECORD_WORDS]
    }
}

/// The compute unit's end.
#[derive(Debug)]
pub struct ChunkWriter {
    track: Track,
    count: u64,
    busy_ns: u64,
}

impl ChunkWriter {
    /// The writer of the ring at offset `at` in zeroed memory. There must be only one per ring.
    pub fn new(region: Arc<Region>, at: u64) -> ChunkWriter {
        ChunkWriter { track: Track { region, at }, count: 0, busy_ns: 0 }
    }

    /// Records a chunk of this compute unit.
    pub fn note(&mut self, chunk: &ChunkRecord) {
        let slot = self.track.slot(self.count);
        slot[0].store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = [
            chunk.launch.0,
            u64::from(chunk.queue.0) | (chunk.end as u64) << 32,
            chunk.first_block,
            chunk.blocks,
            chunk.began_ns,
            chunk.ended_ns,
        ];
        slot[1..].iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.count += 1;
        self.busy_ns += chunk.ended_ns.saturating_sub(chunk.began_ns);
        slot[0].store(self.count, Ordering::Release);
        let header = self.track.words();
        header[BUSY_WORD].store(self.busy_ns, Ordering::Relaxed);
        header[COUNT_WORD].store(self.count, Ordering::Release);
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct ChunkReader {
    track: Track,
    unit: u32,
    /// Number of chunks that were taken or lost.
    next: u64,
}

impl ChunkReader {
    /// The reader of the ring of compute unit `unit`, at offset `at`.
    pub fn new(region: Arc<Region>, at: u64, unit: u32) -> ChunkReader {
        ChunkReader { track: Track { region, at }, unit, next: 0 }
    }

    /// Takes at most `max` chunks, oldest first. Returns how many were overwritten or invalid.
    pub fn take(&mut self, max: u64, each: &mut dyn FnMut(ChunkRecord)) -> u64 {
        let count = self.count();
        let oldest = count.saturating_sub(CHUNKS_KEPT);
        let mut lost = oldest.saturating_sub(self.next);
        // If the peer's count went backwards, start again from it.
        self.next = self.next.max(oldest).min(count);
        let end = count.min(self.next.saturating_add(max));
        for index in self.next..end {
            match self.read(index) {
                Some(chunk) => each(chunk),
                None => lost += 1,
            }
        }
        self.next = end;
        lost
    }

    /// Number of chunks that have not been taken.
    pub fn left(&self) -> u64 {
        self.count().saturating_sub(self.next)
    }

    /// The total use, as the compute unit reports it.
    pub fn usage(&self) -> ComputeUnitUse {
        ComputeUnitUse { chunks: self.count(), busy_ns: self.track.words()[BUSY_WORD].load(Ordering::Relaxed) }
    }

    fn count(&self) -> u64 {
        self.track.words()[COUNT_WORD].load(Ordering::Acquire)
    }

    fn read(&self, index: u64) -> Option<ChunkRecord> {
        let slot = self.track.slot(index);
        let is_whole = |order| slot[0].load(order) == index + 1;
        if !is_whole(Ordering::Acquire) {
            return None;
        }
        let [launch, queue_and_end, first_block, blocks, began_ns, ended_ns] =
            std::array::from_fn(|word| slot[word + 1].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if !is_whole(Ordering::Relaxed) {
            return None;
        }
        let end = ChunkEnd::from_code(queue_and_end >> 32)?;
        let (launch, queue) = (LaunchId(launch), QueueId(queue_and_end as u32));
        Some(ChunkRecord { unit: self.unit, launch, queue, first_block, blocks, began_ns, ended_ns, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (ChunkWriter, ChunkReader) {
        let region = Arc::new(Region::create("chunks", CHUNKS_BYTES).unwrap());
        (ChunkWriter::new(region.clone(), 0), ChunkReader::new(region, 0, 3))
    }

    fn chunk(number: u64, end: ChunkEnd) -> ChunkRecord {
        ChunkRecord {
            unit: 3,
            launch: LaunchId(number),
            queue: QueueId(1),
            first_block: number,
            blocks: 1,
            began_ns: number * 10,
            ended_ns: number * 10 + 5,
            end,
        }
    }

    #[test]
    fn chunks_are_read_as_written() {
        let (mut writer, mut reader) = pair();
        let chunks: Vec<_> = ChunkEnd::ALL.into_iter().zip(100..).map(|(end, number)| chunk(number, end)).collect();
        chunks.iter().for_each(|chunk| writer.note(chunk));
        let mut seen = Vec::new();
        assert_eq!((reader.take(3, &mut |chunk| seen.push(chunk)), reader.left()), (0, 2));
        assert_eq!(reader.take(3, &mut |chunk| seen.push(chunk)), 0);
        assert_eq!(seen, chunks);
        assert_eq!(reader.usage(), ComputeUnitUse { chunks: 5, busy_ns: 25 });
    }

    #[test]
    fn overwritten_chunks_are_counted() {
        let (mut writer, mut reader) = pair();
        (0..CHUNKS_KEPT + 7).for_each(|number| writer.note(&chunk(number, ChunkEnd::Finished)));
        let mut seen = Vec::new();
        assert_eq!(reader.take(u64::MAX, &mut |chunk| seen.push(chunk.launch.0)), 7);
        assert!(seen.iter().copied().eq(7..CHUNKS_KEPT + 7));
    }

    #[test]
    fn a_malicious_writer_only_affects_its_own_chunks() {
        let (mut writer, mut reader) = pair();
        (0..4).for_each(|number| writer.note(&chunk(number, ChunkEnd::Finished)));
        let words = |at: usize| &reader_words(&reader)[at];
        // A record that is being written, and an invalid `ChunkEnd`.
        words(HEADER_WORDS).store(0, Ordering::Relaxed);
        words(HEADER_WORDS + RECORD_WORDS + 2).store(77 << 32, Ordering::Relaxed);
        let region = reader.track.region.clone();
        let count = |value: u64| region.words(0, WORDS).unwrap()[COUNT_WORD].store(value, Ordering::Release);
        let mut seen = Vec::new();
        assert_eq!(reader.take(9, &mut |chunk| seen.push(chunk.launch.0)), 2);
        assert_eq!(seen, [2, 3]);
        count(u64::MAX);
        let mut taken = 0;
        assert!(reader.take(100, &mut |_| taken += 1) > 0);
        count(1);
        assert_eq!((reader.take(100, &mut |_| taken += 1), reader.left(), taken), (0, 0, 0));
        count(4);
        assert_eq!((reader.take(100, &mut |_| taken += 1), taken), (1, 2));
    }

    fn reader_words(reader: &ChunkReader) -> &[AtomicU64] {
        reader.track.words()
    }
}
