//! Doorbells of a ring: they wake the other side, so that it reads the ring. Compute units sleep
//! on a futex word; the engine polls an eventfd.
//!
//! Neither bell needs a system call while the other side is awake.

use rustix::event::EventfdFlags;
use rustix::thread::futex;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// Wakes sleeping compute units. Both words are in shared memory. The ticket counts rings, so that
/// a ring between the last look and falling asleep is not lost.
#[derive(Clone, Copy, Debug)]
pub struct SleepBell<'a> {
    /// Counts rings.
    pub ticket: &'a AtomicU32,
    /// Counts sleeping threads.
    pub sleepers: &'a AtomicU32,
}

impl SleepBell<'_> {
    /// The current ticket. Take it before looking for work.
    pub fn ticket(&self) -> u32 {
        self.ticket.load(SeqCst)
    }

    /// Wakes up to `count` sleepers; threads that are awake see the new ticket.
    ///
    /// The ringing thread subtracts the woken sleepers from the count, so that a sleeper that was
    /// woken but waits for a CPU causes no second system call.
    pub fn ring(&self, count: u32) {
        self.ticket.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            // A shared futex: the sleeper may be in another process. The call cannot fail on a
            // mapped word.
            let woken = futex::wake(self.ticket, futex::Flags::empty(), count).unwrap_or(0);
            self.sleepers.fetch_sub(woken as u32, SeqCst);
        }
    }

    /// Sleeps until the bell rings. Returns at once if it rang since `ticket` was taken.
    pub fn sleep(&self, ticket: u32) {
        self.sleep_at_most(ticket, None);
    }

    /// Like [`SleepBell::sleep`], for at most `time`.
    pub fn sleep_for(&self, ticket: u32, time: Duration) {
        let time = futex::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        self.sleep_at_most(ticket, Some(&time));
    }

    fn sleep_at_most(&self, ticket: u32, time: Option<&futex::Timespec>) {
        self.sleepers.fetch_add(1, SeqCst);
        // The caller checks again, for whatever reason it woke. Only a thread that was woken by
        // `ring` has been subtracted from the count.
        if futex::wait(self.ticket, futex::Flags::empty(), ticket, time).is_err() {
            self.sleepers.fetch_sub(1, SeqCst);
        }
    }
}

/// Makes a file descriptor readable, for a waiter in an event loop. The flag in shared memory is
/// set while the descriptor is readable or about to be.
#[derive(Debug)]
pub struct FdBell {
    fd: OwnedFd,
}

impl FdBell {
    /// A bell that has not rung.
    pub fn new() -> std::io::Result<FdBell> {
        Ok(FdBell { fd: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)? })
    }

    /// The bell of another process, by its descriptor.
    pub fn from_fd(fd: OwnedFd) -> FdBell {
        FdBell { fd }
    }

    /// Rings regardless of the flag.
    pub fn force(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Silences the bell without relying on the flag, which the peer may have changed. True if the
    /// bell rang.
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

    /// Rings after something was published; makes one system call per batch.
    pub fn ring(&self, flag: &AtomicU32) {
        if flag.swap(1, SeqCst) == 0 {
            // A counter that starts at 0 and is read before each write cannot overflow.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Silences the bell. True if it rang; then the caller must look once more, since this may have
    /// swallowed a later ring.
    ///
    /// The flag is cleared only after the descriptor was read. If a ringing thread is between its
    /// swap and its write, the flag stays set, and the next call silences the bell.
    pub fn silence(&self, flag: &AtomicU32) -> bool {
        if flag.load(SeqCst) == 0 {
            return false;
        }
        if rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok() {
            // A swap, not a store. A thread that found the flag set published its work before it
            // rang; the swap makes that work visible to the caller's next look.
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
