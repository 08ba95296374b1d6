//! How one side of a ring tells the other to look: compute units sleep on a futex word, the engine
//! polls an eventfd.
//!
//! Neither costs a system call while the other side is awake.

use rustix::event::EventfdFlags;
use rustix::thread::futex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Wakes sleeping compute units. Both words lie in shared memory; the ticket counts rings, so that
/// a ring between looking and falling asleep is not lost.
#[derive(Clone, Copy, Debug)]
pub struct SleepBell<'a> {
    /// Counts rings.
    pub ticket: &'a AtomicU32,
    /// Counts those that sleep.
    pub sleepers: &'a AtomicU32,
}

impl SleepBell<'_> {
    /// Take it before looking for work.
    pub fn ticket(&self) -> u32 {
        self.ticket.load(SeqCst)
    }

    /// Wakes up to `count` sleepers; those awake see that the ticket changed.
    ///
    /// Whoever wakes a sleeper strikes it off the count, so that one that waits for a CPU costs no
    /// second system call.
    pub fn ring(&self, count: u32) {
        self.ticket.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            // Shared, not private: the sleeper may be another process. It cannot fail on a word
            // that is mapped.
            let woken = futex::wake(self.ticket, futex::Flags::empty(), count).unwrap_or(0);
            self.sleepers.fetch_sub(woken as u32, SeqCst);
        }
    }

    /// Sleeps until the bell rings, at once over if it rang since `ticket` was taken.
    pub fn sleep(&self, ticket: u32) {
        self.sleep_at_most(ticket, None);
    }

    /// As [`SleepBell::sleep`], for so long at most.
    pub fn sleep_for(&self, ticket: u32, time: Duration) {
        let time = futex::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        self.sleep_at_most(ticket, Some(&time));
    }

    fn sleep_at_most(&self, ticket: u32, time: Option<&futex::Timespec>) {
        self.sleepers.fetch_add(1, SeqCst);
        // Every way to return is fine, the caller looks again; but only one that was woken was
        // struck off.
        if futex::wait(self.ticket, futex::Flags::empty(), ticket, time).is_err() {
            self.sleepers.fetch_sub(1, SeqCst);
        }
    }
}

/// Makes a file descriptor readable for a waiter in an event loop. The flag in shared memory says
/// that the descriptor is, or is about to be, readable.
#[derive(Debug)]
pub struct FdBell {
    fd: OwnedFd,
}

impl FdBell {
    /// A bell that is silent.
    pub fn new() -> std::io::Result<FdBell> {
        Ok(FdBell { fd: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)? })
    }

    /// The bell of another process.
    pub fn from_fd(fd: OwnedFd) -> FdBell {
        FdBell { fd }
    }

    /// Rings whatever the flag says.
    pub fn force(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Silences the bell without believing the flag; true where it rang.
    pub fn silence_untrusted(&self, flag: &AtomicU32) -> bool {
        let rang = rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok();
        if rang {
            flag.swap(0, SeqCst);
        }
        rang
    }

    /// The same bell through another descriptor.
    pub fn try_clone(&self) -> std::io::Result<FdBell> {
        Ok(FdBell { fd: self.fd.try_clone()? })
    }

    /// Rings after something was published; one system call per batch.
    pub fn ring(&self, flag: &AtomicU32) {
        if flag.swap(1, SeqCst) == 0 {
            // A counter that starts at 0 and is read before each write cannot overflow.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Silences the bell; true where it rang, and the caller must look once more, since a ring may
    /// have been swallowed.
    ///
    /// The flag falls only once the descriptor was read. A ringer between its swap and its write
    /// leaves it up; the next call gets it.
    pub fn silence(&self, flag: &AtomicU32) -> bool {
        if flag.load(SeqCst) == 0 {
            return false;
        }
        if rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok() {
            // A swap, not a store: a ringer that still saw the flag up has published before, and
            // the caller's next look must see that.
            flag.swap(0, SeqCst);
        }
        true
    }
}

impl AsFd for FdBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
