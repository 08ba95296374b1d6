//! The shared memory between an engine and the compute units of its device, and the engine's end of
//! it.
//!
//! One region holds the control words; for each device queue a command ring and a completion ring;
//! for each compute unit its current occupation and the ring of its chunks. Each word has a cache
//! line of its own.

mod chunks;
mod engine_side;
mod interrupt;
mod lanes;

pub use chunks::{ChunkReader, ChunkWriter};
pub use engine_side::EngineSide;
pub use interrupt::{HALT_SIGNAL, Occupation, UnitWords};
pub use lanes::{Order, UNITS_MAX};

use chunks::CHUNKS_BYTES;
use lanes::LANES_BYTES;

use crate::doorbell::SleepBell;
use crate::record::{COMMAND_ARENA_WORDS, COMMAND_WORDS, COMPLETION_WORDS};
use crate::ring::{Consumer, Producer, ring_bytes};
use crate::shm::Region;
use atoll_core::LaunchId;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Most device queues: a stop mask has one bit for each.
pub const QUEUES_MAX: u32 = 64;

/// Most launches in a device queue. A command takes 4,224 bytes, of which only the used ones are
/// touched.
pub const CAPACITY_MAX: u32 = 1 << 16;

/// Bit of a stop word that ends the device. The bits below count queues and never reach it.
const SHUTDOWN_BIT: u32 = 1 << 31;

/// Offset of a queue's stop mask from its stop word.
const STOP_MASK_BEHIND: u64 = 8;

const LINE_BYTES: u64 = 64;
const TICKET_AT: u64 = 0;
const SLEEPERS_AT: u64 = LINE_BYTES;
const COMPLETION_FLAG_AT: u64 = 2 * LINE_BYTES;
const STATE_AT: u64 = 3 * LINE_BYTES;
const ABORT_TICKET_AT: u64 = 4 * LINE_BYTES;
const ABORT_SLEEPERS_AT: u64 = 5 * LINE_BYTES;
const BUSY_AT: u64 = 6 * LINE_BYTES;
const BEAT_AT: u64 = 7 * LINE_BYTES;
const REPORTS_AT: u64 = 8 * LINE_BYTES;
const STOP_WORDS_AT: u64 = 9 * LINE_BYTES;
const ABORT_WORDS_AT: u64 = STOP_WORDS_AT + QUEUES_MAX as u64 * LINE_BYTES;
const LANES_AT: u64 = ABORT_WORDS_AT + QUEUES_MAX as u64 * LINE_BYTES;
const RINGS_AT: u64 = (LANES_AT + LANES_BYTES).next_multiple_of(2 * LINE_BYTES);

/// The engine's end of a command ring.
pub type CommandProducer = Producer<COMMAND_WORDS, COMMAND_ARENA_WORDS>;

/// The device's end of a command ring.
pub type CommandConsumer = Consumer<COMMAND_WORDS, COMMAND_ARENA_WORDS>;

/// Values of the device's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The device runs.
    Running = 0,
    /// The engine asked the compute units to end.
    Ending = 1,
    /// A compute unit died, or a ring is corrupt.
    Lost = 2,
}

/// The region and its shape. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Link {
    region: Arc<Region>,
    shape: LinkShape,
}

/// The number of queues, launches and compute units.
#[derive(Clone, Copy, Debug)]
pub struct LinkShape {
    /// Device queues of the default lane that are assigned to tasks.
    pub queues: u32,
    /// Whether these are followed by as many paired queues, and lanes of several compute units have
    /// paired queues too.
    pub paired_queues: bool,
    /// Device queues for further lanes.
    pub lane_queues: u32,
    /// Most launches in a queue.
    pub capacity: u32,
    /// Compute units that report their occupation and chunks; 0 if the device cannot.
    pub compute_units: u32,
}

impl LinkShape {
    /// Whether a link of this shape can exist.
    pub fn is_possible(self) -> bool {
        let own = self.queues.saturating_mul(if self.paired_queues { 2 } else { 1 });
        let queues = own.saturating_add(self.lane_queues);
        self.queues > 0
            && queues <= QUEUES_MAX
            && (1..=CAPACITY_MAX).contains(&self.capacity)
            && self.compute_units <= UNITS_MAX
    }

    /// Device queues of the default lane, including paired queues.
    pub fn own_queues(self) -> u32 {
        self.queues * if self.paired_queues { 2 } else { 1 }
    }

    /// Device queues of all lanes.
    pub fn all_queues(self) -> u32 {
        self.own_queues() + self.lane_queues
    }

    fn bytes(self) -> u64 {
        self.chunks_at() + u64::from(self.compute_units) * CHUNKS_BYTES
    }

    fn chunks_at(self) -> u64 {
        (self.units_at() + u64::from(self.compute_units) * LINE_BYTES).next_multiple_of(2 * LINE_BYTES)
    }

    fn units_at(self) -> u64 {
        RINGS_AT + u64::from(self.all_queues()) * self.rings_bytes()
    }

    fn rings_bytes(self) -> u64 {
        ring_bytes::<COMMAND_WORDS, COMMAND_ARENA_WORDS>(self.capacity)
            + ring_bytes::<COMPLETION_WORDS, 0>(self.capacity)
    }
}

impl Link {
    /// Creates the region: zeroed, with the default lane open.
    pub fn create(shape: LinkShape) -> std::io::Result<Link> {
        let link = Link { region: Arc::new(Region::create("atoll-link", shape.bytes())?), shape };
        let units: Vec<u32> = (0..shape.compute_units).collect();
        link.set_lane(0..shape.own_queues(), shape.paired_queues, &units);
        Ok(link)
    }

    /// Maps a region that another process created.
    pub fn attach(fd: OwnedFd, shape: LinkShape) -> std::io::Result<Link> {
        let region = Arc::new(Region::attach(fd)?);
        if region.bytes() != shape.bytes() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the rings have another size"));
        }
        Ok(Link { region, shape })
    }

    /// The engine's ends of the rings of a queue.
    pub fn engine_ends(&self, queue: u32) -> (CommandProducer, Consumer<COMPLETION_WORDS>) {
        let (commands, completions) = self.ring_places(queue);
        let producer = Producer::new(self.region.clone(), commands, self.shape.capacity);
        let consumer = Consumer::new(self.region.clone(), completions, self.shape.capacity);
        (producer.expect("`create` reserved the rings"), consumer.expect("`create` reserved the rings"))
    }

    /// The compute units' ends of the rings of a queue.
    pub fn device_ends(&self, queue: u32) -> (CommandConsumer, Producer<COMPLETION_WORDS>) {
        let (commands, completions) = self.ring_places(queue);
        let consumer = Consumer::new(self.region.clone(), commands, self.shape.capacity);
        let producer = Producer::new(self.region.clone(), completions, self.shape.capacity);
        (consumer.expect("`create` reserved the rings"), producer.expect("`create` reserved the rings"))
    }

    /// The chunk ring of a compute unit, for writing. There must be only one writer for each.
    pub fn chunk_writer(&self, unit: u32) -> ChunkWriter {
        ChunkWriter::new(self.region.clone(), self.chunks_at(unit))
    }

    /// The chunk rings of all compute units, for reading.
    pub fn chunk_readers(&self) -> Vec<ChunkReader> {
        (0..self.shape.compute_units)
            .map(|unit| ChunkReader::new(self.region.clone(), self.chunks_at(unit), unit))
            .collect()
    }

    /// The bell that wakes compute units.
    pub fn bell(&self) -> SleepBell<'_> {
        SleepBell { ticket: self.word(TICKET_AT), sleepers: self.word(SLEEPERS_AT) }
    }

    /// The bell that wakes the watchdog.
    pub fn abort_bell(&self) -> SleepBell<'_> {
        SleepBell { ticket: self.word(ABORT_TICKET_AT), sleepers: self.word(ABORT_SLEEPERS_AT) }
    }

    /// Asks the device to end a launch, which is the oldest of its queue.
    pub fn abort(&self, queue: u32, launch: LaunchId) {
        self.abort_word(queue).store(launch.0.wrapping_add(1), SeqCst);
        self.abort_bell().ring(1);
    }

    /// Whether the engine asked to end a launch.
    pub fn is_aborted(&self, queue: u32, launch: LaunchId) -> bool {
        self.abort_word(queue).load(SeqCst) == launch.0.wrapping_add(1)
    }

    /// The launch of a queue that was aborted last, plus one; 0 at first. Launch ids are never
    /// reused, so the word need not be cleared.
    fn abort_word(&self, queue: u32) -> &AtomicU64 {
        self.long_word(ABORT_WORDS_AT + u64::from(queue) * LINE_BYTES)
    }

    /// Adds to the time that compute units ran blocks.
    pub fn add_busy(&self, ns: u64) {
        self.long_word(BUSY_AT).fetch_add(ns, Relaxed);
    }

    /// The time that compute units ran blocks, summed over compute units, in nanoseconds.
    pub fn busy_ns(&self) -> u64 {
        self.long_word(BUSY_AT).load(Relaxed)
    }

    /// Counts a report that was sent. The completion of its launch must follow.
    pub fn note_report(&self) {
        self.long_word(REPORTS_AT).fetch_add(1, Relaxed);
    }

    /// Number of reports sent. A reader that has taken a completion sees the reports of its launch
    /// counted.
    pub fn reports(&self) -> u64 {
        self.long_word(REPORTS_AT).load(Relaxed)
    }

    /// The flag that belongs to the completion eventfd.
    pub fn completion_flag(&self) -> &AtomicU32 {
        self.word(COMPLETION_FLAG_AT)
    }

    /// A word that changes while the device's watchdog is alive.
    pub fn beat_word(&self) -> &AtomicU32 {
        self.word(BEAT_AT)
    }

    /// The word that stops compute units running blocks of `queue`; nonzero while they have to
    /// stop. It counts the more urgent queues with blocks that no compute unit has taken, plus one
    /// while blocks of `queue` itself have to stop because their launch was evicted.
    pub fn stop_word(&self, queue: u32) -> &AtomicU32 {
        self.word(STOP_WORDS_AT + u64::from(queue) * LINE_BYTES)
    }

    /// The queues that the stop word counts: bit `h` is set for queue `h`; the queue's own bit
    /// means that its launch was evicted. It is a separate word because kernels read a word of 32
    /// bits, too few for a bit per queue.
    fn stop_mask(&self, queue: u32) -> &AtomicU64 {
        self.long_word(STOP_WORDS_AT + u64::from(queue) * LINE_BYTES + STOP_MASK_BEHIND)
    }

    /// Asks compute units that run blocks of less urgent queues to turn to `queue`.
    pub fn raise_stop(&self, queue: u32) {
        self.stopped_by(queue).for_each(|lower| self.raise(lower, queue));
    }

    /// Withdraws [`Link::raise_stop`]: no blocks in `queue` wait for a compute unit.
    pub fn clear_stop(&self, queue: u32) {
        self.stopped_by(queue).for_each(|lower| self.clear(lower, queue));
    }

    /// Asks compute units that run blocks of `queue` to abandon them.
    pub(super) fn raise_evicted(&self, queue: u32) {
        self.raise(queue, queue);
    }

    /// Withdraws `raise_evicted`: a compute unit takes new blocks of `queue`, and these have to
    /// run.
    pub fn clear_evicted(&self, queue: u32) {
        self.clear(queue, queue);
    }

    /// Sets the bit of `by` in the stop mask of a queue, and counts it in the stop word.
    fn raise(&self, stopped: u32, by: u32) {
        let (word, mask) = (self.stop_word(stopped), self.stop_mask(stopped));
        if mask.load(SeqCst) & (1 << by) == 0 {
            // Counted before the bit is set, so that a thread that clears the bit finds it counted.
            word.fetch_add(1, SeqCst);
            if mask.fetch_or(1 << by, SeqCst) & (1 << by) != 0 {
                word.fetch_sub(1, SeqCst);
            }
        }
    }

    fn clear(&self, stopped: u32, by: u32) {
        let (word, mask) = (self.stop_word(stopped), self.stop_mask(stopped));
        if mask.load(SeqCst) & (1 << by) != 0 && mask.fetch_and(!(1 << by), SeqCst) & (1 << by) != 0 {
            word.fetch_sub(1, SeqCst);
        }
    }

    /// The shape of the link.
    pub fn shape(&self) -> LinkShape {
        self.shape
    }

    /// The occupation of a compute unit, for threads that want it to stop.
    pub fn unit(&self, index: u32) -> UnitWords<'_> {
        let at = self.shape.units_at() + u64::from(index) * LINE_BYTES;
        UnitWords { occupation: self.long_word(at), thread: self.word(at + 8) }
    }

    /// The device's state. An invalid value counts as lost.
    pub fn state(&self) -> State {
        match self.word(STATE_AT).load(SeqCst) {
            0 => State::Running,
            1 => State::Ending,
            _ => State::Lost,
        }
    }

    /// Ends the device: stops compute units that poll, wakes those that sleep. Only the first
    /// reason is kept.
    pub fn end(&self, reason: State) {
        let _ = self.word(STATE_AT).compare_exchange(State::Running as u32, reason as u32, SeqCst, SeqCst);
        for queue in 0..self.shape.all_queues() {
            self.stop_word(queue).fetch_or(SHUTDOWN_BIT, SeqCst);
        }
        self.bell().ring(u32::MAX >> 1);
        self.abort_bell().ring(1);
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.region.word(at).expect("control words lie before the rings")
    }

    fn long_word(&self, at: u64) -> &AtomicU64 {
        let words = self.region.words(at, 1).expect("control words lie before the rings");
        &words[0]
    }

    fn ring_places(&self, queue: u32) -> (u64, u64) {
        let commands = RINGS_AT + u64::from(queue) * self.shape.rings_bytes();
        (commands, commands + ring_bytes::<COMMAND_WORDS, COMMAND_ARENA_WORDS>(self.shape.capacity))
    }

    fn chunks_at(&self, unit: u32) -> u64 {
        self.shape.chunks_at() + u64::from(unit) * CHUNKS_BYTES
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::rng::Rng;

    const QUEUES: u32 = 40;

    fn link() -> Link {
        Link::create(LinkShape { queues: QUEUES, paired_queues: false, lane_queues: 0, capacity: 1, compute_units: 1 })
            .expect("memory")
    }

    #[test]
    fn a_queue_stops_less_urgent_queues_while_it_has_blocks() {
        for seed in 0..20 {
            let (link, mut rng) = (link(), Rng::new(seed));
            let mut raised = [false; QUEUES as usize];
            for step in 0..500 {
                let queue = rng.below(QUEUES.into()) as u32;
                let raises = rng.below(2) == 0;
                if raises {
                    link.raise_stop(queue)
                } else {
                    link.clear_stop(queue)
                }
                raised[queue as usize] = raises;
                for lower in 0..QUEUES {
                    let count = raised[..lower as usize].iter().filter(|raised| **raised).count() as u32;
                    assert_eq!(link.stop_word(lower).load(SeqCst), count, "seed {seed}, step {step}, queue {lower}");
                }
            }
        }
    }

    #[test]
    fn concurrent_raises_and_clears_cancel_out() {
        let link = link();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let link = &link;
                scope.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for _ in 0..5_000 {
                        let queue = 33 + rng.below(4) as u32;
                        if rng.below(2) == 0 {
                            link.raise_stop(queue)
                        } else {
                            link.clear_stop(queue)
                        }
                        assert!(link.stop_word(39).load(SeqCst) < SHUTDOWN_BIT, "the count never drops below zero");
                    }
                });
            }
        });
        (0..QUEUES).for_each(|queue| link.clear_stop(queue));
        assert!((0..QUEUES).all(|queue| link.stop_word(queue).load(SeqCst) == 0));
        link.end(State::Ending);
        assert!((0..QUEUES).all(|queue| link.stop_word(queue).load(SeqCst) != 0));
    }
}
