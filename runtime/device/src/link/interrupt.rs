//! Interruption: taking compute units away from running blocks, for more urgent ones.
//!
//! The stop word alone frees a compute unit at the end of its current block. If that block is long
//! or of unknown length, the compute unit is also sent [`HALT_SIGNAL`]. The sender is the engine,
//! when it submits a launch, or a compute unit that took a launch and cannot run all its blocks
//! alone. No other thread takes part, and the receiver does not answer. The signal only means
//! *check your stop word*. Its handler (`fault`) abandons the block if the stop word is set, the
//! launch may be stopped midway, and the program counter is in the kernel's own code. A superfluous
//! signal is therefore harmless. A signal that arrives while the kernel is in a helper function is
//! lost; the watchdog sends another.
//!
//! The words read here may have been written by another process. The worst effect of a wrong word
//! is a signal to another thread of that process.

use super::{Link, QUEUES_MAX};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The signal that makes a kernel check its stop word. It has no other use, and its default action
/// is to do nothing.
pub const HALT_SIGNAL: i32 = libc::SIGURG;

/// Blocks up to this long are not interrupted: waiting for their end is on average cheaper than a
/// signal and the lost work.
const GRACE_NS: u64 = 40_000;

/// The words in which a compute unit publishes its state.
#[derive(Clone, Copy, Debug)]
pub struct UnitWords<'a> {
    pub(super) occupation: &'a AtomicU64,
    /// The thread id, for signals; 0 before the thread runs.
    pub(super) thread: &'a AtomicU32,
}

/// What a compute unit runs, as one word; 0 if idle.
///
/// Bits 0 to 7: the queue, plus one. Bit 8: the block may be interrupted. Bit 9: a signal was sent.
/// From bit 16: the length of a block in nanoseconds, 0 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupation(u64);

const INTERRUPTIBLE: u64 = 1 << 8;
const SIGNALLED: u64 = 1 << 9;
const BLOCK_NS_SHIFT: u32 = 16;

/// When a compute unit is available for more urgent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    /// At once or soon, without a signal.
    Soon,
    /// Soon, if it is interrupted.
    IfInterrupted,
    /// Only when its current blocks have finished.
    Later,
}

impl Occupation {
    const NONE: Occupation = Occupation(0);

    /// Running blocks of a queue. `block_ns` is the length of one block, if known.
    pub fn new(queue: u32, may_interrupt: bool, block_ns: Option<u64>) -> Occupation {
        let block_ns = block_ns.unwrap_or(0).min(u64::MAX >> BLOCK_NS_SHIFT);
        Occupation((u64::from(queue) + 1) | if may_interrupt { INTERRUPTIBLE } else { 0 } | block_ns << BLOCK_NS_SHIFT)
    }

    fn queue(self) -> Option<u32> {
        (self.0 as u8).checked_sub(1).map(u32::from)
    }

    fn block_ns(self) -> u64 {
        self.0 >> BLOCK_NS_SHIFT
    }

    /// When the compute unit is available for blocks of a more urgent queue. `outranks(q)` tells
    /// whether that queue comes before queue `q`.
    fn availability(self, outranks: impl Fn(u32) -> bool) -> Availability {
        match self.queue() {
            None => Availability::Soon,
            Some(runs) if !outranks(runs) || self.0 & INTERRUPTIBLE == 0 => Availability::Later,
            Some(_) if self.0 & SIGNALLED != 0 || (1..=GRACE_NS).contains(&self.block_ns()) => Availability::Soon,
            Some(_) => Availability::IfInterrupted,
        }
    }
}

impl Occupation {
    /// Whether the compute unit runs long, interruptible blocks of this queue and no signal was
    /// sent yet.
    fn is_interruptible_in(self, queue: u32) -> bool {
        self.queue() == Some(queue)
            && self.0 & (INTERRUPTIBLE | SIGNALLED) == INTERRUPTIBLE
            && !(1..=GRACE_NS).contains(&self.block_ns())
    }
}

impl UnitWords<'_> {
    /// Records the calling thread as the compute unit's thread.
    pub fn attach(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Relaxed);
    }

    /// Publishes that the compute unit starts to run blocks. Either the kernel sees a stop word
    /// that was set before this, or the thread that set it sees this occupation.
    pub fn begin(&self, occupation: Occupation) {
        self.occupation.store(occupation.0, SeqCst);
    }

    /// Publishes that the compute unit is idle and will look at the queues again.
    pub fn end(&self) {
        self.occupation.store(Occupation::NONE.0, SeqCst);
    }

    /// Makes the compute unit's thread check its stop and halt words.
    pub fn signal(&self, process: i32) {
        // SAFETY: a system call without memory arguments. Any thread of that process may receive
        // the signal: it does nothing by default, and nothing to a block that was not told to stop.
        let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread.load(Relaxed), HALT_SIGNAL) };
    }

    /// The last signal had no effect; allows sending another.
    pub fn signal_again(&self) {
        self.occupation.fetch_and(!SIGNALLED, SeqCst);
    }

    fn interrupt(&self, occupation: Occupation, process: i32) -> bool {
        let signalled = self.occupation.compare_exchange(occupation.0, occupation.0 | SIGNALLED, SeqCst, Relaxed);
        if signalled.is_ok() {
            self.signal(process);
        }
        signalled.is_ok()
    }
}

impl Link {
    /// Interrupts compute units until `blocks` blocks of a queue can start soon, or until no
    /// compute unit of the queue can be interrupted for it. `process` is the process of the compute
    /// units. Call it after the blocks are in the queue and the stop words are set.
    pub fn interrupt_for(&self, queue: u32, blocks: u64, process: i32) {
        if !(0..self.shape().all_queues()).any(|other| self.outranks(queue, other)) {
            return;
        }
        let units = || (0..self.shape().compute_units).filter(|&unit| self.serves(unit, queue));
        let occupation = |unit: u32| Occupation(self.unit(unit).occupation.load(SeqCst));
        // The peer may claim to run blocks of a queue that does not exist.
        let availability = |seen: Occupation| seen.availability(|runs| runs < QUEUES_MAX && self.outranks(queue, runs));
        let coming = units().filter(|&unit| availability(occupation(unit)) == Availability::Soon).count() as u64;
        let mut missing = blocks.saturating_sub(coming);
        for unit in units() {
            if missing == 0 {
                break;
            }
            let seen = occupation(unit);
            if availability(seen) == Availability::IfInterrupted && self.unit(unit).interrupt(seen, process) {
                missing -= 1;
            }
        }
    }

    /// Interrupts compute units that run blocks of a queue whose launch was evicted, until `blocks`
    /// compute units are idle or about to be. `process` is the process of the compute units.
    pub fn interrupt_evicted(&self, queue: u32, blocks: u64, process: i32) {
        self.raise_evicted(queue);
        let occupation = |unit: u32| Occupation(self.unit(unit).occupation.load(SeqCst));
        let units = || (0..self.shape().compute_units).filter(|&unit| self.serves(unit, queue));
        let idle = units().filter(|&unit| occupation(unit) == Occupation::NONE).count() as u64;
        let mut missing = blocks.saturating_sub(idle);
        for unit in units() {
            if missing == 0 {
                break;
            }
            let seen = occupation(unit);
            if seen.is_interruptible_in(queue) && self.unit(unit).interrupt(seen, process) {
                missing -= 1;
            }
        }
    }

    /// Whether a compute unit runs blocks of this queue and will therefore look at it again.
    pub fn is_served(&self, queue: u32) -> bool {
        (0..self.shape().compute_units)
            .any(|unit| Occupation(self.unit(unit).occupation.load(SeqCst)).queue() == Some(queue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkShape;

    #[test]
    fn only_long_blocks_of_less_urgent_queues_are_interrupted() {
        use Availability::{IfInterrupted, Later, Soon};
        assert_eq!(Occupation::NONE.availability(|_| true), Soon);
        for (runs, may_interrupt, block_ns, availability) in [
            (1, true, None, IfInterrupted),
            (1, true, Some(GRACE_NS), Soon),
            (1, true, Some(GRACE_NS + 1), IfInterrupted),
            (1, true, Some(u64::MAX), IfInterrupted),
            (1, false, None, Later),
            (0, true, None, Later),
            (30, true, None, IfInterrupted),
        ] {
            assert_eq!(
                Occupation::new(runs, may_interrupt, block_ns).availability(|runs| runs > 0),
                availability,
                "{runs} {may_interrupt} {block_ns:?}"
            );
        }
        assert_eq!(Occupation::new(2, true, None).availability(|runs| runs > 2), Later);
        assert_eq!(Occupation(Occupation::new(1, true, None).0 | SIGNALLED).availability(|runs| runs > 0), Soon);
    }

    #[test]
    fn evicted_work_is_interrupted_where_it_runs() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        for (blocks, signalled) in [(0, 0), (1, 0), (2, 1), (9, 2)] {
            let link = Link::create(LinkShape {
                queues: 3,
                paired_queues: false,
                lane_queues: 0,
                capacity: 1,
                compute_units: 5,
            })
            .unwrap();
            // One unit is idle, two run long blocks of queue 1, one runs blocks that may not be
            // interrupted, one runs another queue. No unit has a thread, so no signal arrives.
            link.unit(1).begin(Occupation::new(1, true, None));
            link.unit(2).begin(Occupation::new(1, false, None));
            link.unit(3).begin(Occupation::new(1, true, Some(1_000_000)));
            link.unit(4).begin(Occupation::new(2, true, None));
            link.interrupt_evicted(1, blocks, own);
            let count = (0..5).filter(|&unit| link.unit(unit).occupation.load(SeqCst) & SIGNALLED != 0).count();
            assert_eq!(count, signalled, "{blocks} blocks");
            assert_ne!(link.stop_word(1).load(SeqCst), 0, "a signalled unit finds its stop word set");
            assert_eq!(link.stop_word(2).load(SeqCst), 0, "other queues go on");
            link.clear_evicted(1);
            assert_eq!(link.stop_word(1).load(SeqCst), 0);
        }
    }

    #[test]
    fn no_more_are_interrupted_than_there_are_blocks_for() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        for (blocks, signalled) in [(1, 0), (2, 1), (3, 2), (9, 2)] {
            let link = Link::create(LinkShape {
                queues: 2,
                paired_queues: false,
                lane_queues: 0,
                capacity: 1,
                compute_units: 4,
            })
            .unwrap();
            // One unit is idle, two run interruptible blocks, one runs blocks that may not be
            // interrupted. No unit has a thread, so no signal arrives.
            link.unit(1).begin(Occupation::new(1, true, None));
            link.unit(2).begin(Occupation::new(1, false, None));
            link.unit(3).begin(Occupation::new(1, true, Some(1_000_000)));
            link.interrupt_for(0, blocks, own);
            let count = (0..4).filter(|&unit| link.unit(unit).occupation.load(SeqCst) & SIGNALLED != 0).count();
            assert_eq!(count, signalled, "{blocks} blocks");
            link.interrupt_for(0, blocks, own);
            link.interrupt_for(1, blocks, own);
            link.unit(0).signal_again();
            assert_eq!(
                (0..4).filter(|&unit| link.unit(unit).occupation.load(SeqCst) & SIGNALLED != 0).count(),
                count,
                "once"
            );
            assert!(link.is_served(1) && !link.is_served(0));
        }
    }
}
