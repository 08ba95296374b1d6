//! Interruption: compute units are taken from the blocks they run, for more urgent ones (design D2,
//! D4).
//!
//! The stop word alone gets a compute unit back at the end of the block it is in. Where that block
//! is long, or nobody knows how long it is, whoever has the more urgent blocks also sends
//! [`HALT_SIGNAL`]: the engine's side with a submission, and a compute unit that took a launch and
//! cannot run all of its blocks alone. There is no thread in between, and no answer: the signal
//! says no more than *look at your stop word*, and its handler (`fault`) drops the call if the word
//! is set, the call may be dropped and the program counter lies in the kernel's own code. So one
//! signal too many harms nobody. One that came while the kernel was in a helper is lost; the
//! watchdog sends another.
//!
//! What the engine's side reads here, another process may have written. The most that a wrong word
//! does is a signal to a wrong thread of that process.

use super::{Link, QUEUES_MAX};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Stops a kernel that has to stop. Nobody else sends it to threads, and by default it does
/// nothing.
pub const HALT_SIGNAL: i32 = libc::SIGURG;

/// A compute unit whose blocks take no longer than this is not interrupted: it comes by itself, and
/// on average sooner than a signal and the lost work would be worth.
const GRACE_NS: u64 = 40_000;

/// What a compute unit shows of itself.
#[derive(Clone, Copy, Debug)]
pub struct UnitWords<'a> {
    pub(super) occupation: &'a AtomicU64,
    /// The thread, for signals; 0 before it runs.
    pub(super) thread: &'a AtomicU32,
}

/// What a compute unit runs, as one word: 0 for nothing.
///
/// Bits 0 to 7: the queue, plus one. Bit 8: it may be interrupted. Bit 9: a signal is on its way.
/// From bit 16: how long a block of it takes in nanoseconds, 0 where nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupation(u64);

const INTERRUPTIBLE: u64 = 1 << 8;
const SIGNALLED: u64 = 1 << 9;
const BLOCK_NS_SHIFT: u32 = 16;

/// Whether a compute unit will take more urgent blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    /// At once or soon.
    Soon,
    /// When it was interrupted.
    IfInterrupted,
    /// When it has finished.
    Later,
}

impl Occupation {
    const NONE: Occupation = Occupation(0);

    /// Of blocks of a queue; `block_ns` is how long one takes, as far as known.
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

    /// As somebody sees it who has blocks in a queue that comes before some.
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
    /// Whether it runs long blocks of this queue that may be interrupted, and no signal is on its
    /// way.
    fn is_interruptible_in(self, queue: u32) -> bool {
        self.queue() == Some(queue)
            && self.0 & (INTERRUPTIBLE | SIGNALLED) == INTERRUPTIBLE
            && !(1..=GRACE_NS).contains(&self.block_ns())
    }
}

impl UnitWords<'_> {
    /// This thread is the compute unit.
    pub fn attach(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Relaxed);
    }

    /// It begins to run blocks. Either the kernel sees a stop word that was set before, or who set
    /// it sees this.
    pub fn begin(&self, occupation: Occupation) {
        self.occupation.store(occupation.0, SeqCst);
    }

    /// It looks at the queues again.
    pub fn end(&self) {
        self.occupation.store(Occupation::NONE.0, SeqCst);
    }

    /// Has its thread look at its stop and halt words.
    pub fn signal(&self, process: i32) {
        // SAFETY: a system call without memory. Whatever thread it reaches of that process, the
        // signal does nothing by default and nothing to a call that was not told to stop.
        let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, self.thread.load(Relaxed), HALT_SIGNAL) };
    }

    /// The signal came for nothing: the next one may be needed.
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
    /// Sees that compute units come for so many blocks of a queue, as far as they run what may be
    /// interrupted; `process` is theirs. To be called when the blocks are in the queue and the stop
    /// words set.
    pub fn interrupt_for(&self, queue: u32, blocks: u64, process: i32) {
        if !(0..self.shape().all_queues()).any(|other| self.outranks(queue, other)) {
            return;
        }
        let units = || (0..self.shape().compute_units).filter(|&unit| self.serves(unit, queue));
        let occupation = |unit: u32| Occupation(self.unit(unit).occupation.load(SeqCst));
        // A compute unit may say that it runs blocks of a queue that is not there.
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

    /// Interrupts compute units that run blocks of a queue whose work was evicted, until `blocks`
    /// compute units are idle or leave; `process` is theirs.
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

    /// Whether a compute unit runs blocks of this queue, so that it will look there again.
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
            // One idles, two run long blocks of queue 1, one runs blocks that may not be
            // interrupted, one runs another queue. Nobody has a thread, so no signal arrives.
            link.unit(1).begin(Occupation::new(1, true, None));
            link.unit(2).begin(Occupation::new(1, false, None));
            link.unit(3).begin(Occupation::new(1, true, Some(1_000_000)));
            link.unit(4).begin(Occupation::new(2, true, None));
            link.interrupt_evicted(1, blocks, own);
            let count = (0..5).filter(|&unit| link.unit(unit).occupation.load(SeqCst) & SIGNALLED != 0).count();
            assert_eq!(count, signalled, "{blocks} blocks");
            assert_ne!(link.stop_word(1).load(SeqCst), 0, "who is signalled finds why");
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
            // One idles, two run what may be interrupted, one what may not. Nobody has a thread, so
            // no signal arrives.
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
