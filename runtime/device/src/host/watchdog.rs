//! The time limit of launches: a thread that looks at every compute unit now and then and ends calls whose time is over.
//!
//! A call is asked first, through its halt word, which kernels poll where they wait for other threads, and then told, by a signal (`fault`). What the watchdog and a compute unit say to each other goes
//! through one word per compute unit; only a call that is being ended takes the lock, so an ordinary one costs two atomic stores and an exchange.

use super::fault::HALT_SIGNAL;
use super::link::{Link, State};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a call may go on after its halt word was set, before it gets the signal; and again after each signal that found it inside a helper.
const GRACE: Duration = Duration::from_millis(10);

/// How often the watchdog looks, at most and at least; in between it is an eighth of the limit.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// How long calls may still run once the device ends.
const ENDING_NS: u64 = 1_000_000_000;

/// Phases of a call, in the lowest bits of [`Watch::state`]; above them counts the number of the call.
const IDLE: u64 = 0;
const RUNNING: u64 = 1;
const HALTING: u64 = 2;
const PHASES: u64 = 4;

/// One compute unit, as the watchdog sees it. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Watch {
    state: AtomicU64,
    /// Monotonic nanoseconds at which the call must be over.
    deadline_ns: AtomicU64,
    halt_word: AtomicU32,
    /// The thread, for signals; 0 before it runs.
    thread: AtomicI32,
    /// Held by whoever changes a call that is being ended.
    ending: Mutex<()>,
}

impl Watch {
    /// This thread is the compute unit.
    pub(crate) fn attach(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
    }

    /// What the kernel of a call polls.
    pub(crate) fn halt_word(&self) -> &AtomicU32 {
        &self.halt_word
    }

    /// A call begins.
    pub(crate) fn begin(&self, deadline_ns: u64) {
        self.deadline_ns.store(deadline_ns, Relaxed);
        self.state.store(self.state.load(Relaxed) + PHASES + RUNNING, Release);
    }

    /// The call is over; true if the watchdog wanted that.
    pub(crate) fn end(&self) -> bool {
        let running = self.state.load(Relaxed) / PHASES * PHASES + RUNNING;
        let idle = running - RUNNING + IDLE;
        if self.state.compare_exchange(running, idle, AcqRel, Acquire).is_ok() {
            return false;
        }
        let _ending = lock(&self.ending);
        self.halt_word.store(0, Release);
        self.state.store(idle, Release);
        true
    }

    /// Ends the call if it should be over at `now_ns`; true while one is being ended.
    fn look(&self, now_ns: u64) -> bool {
        let state = self.state.load(Acquire);
        match state % PHASES {
            // Read after the state and before the exchange, the deadline belongs to the same call as the state if that succeeds.
            RUNNING if self.deadline_ns.load(Relaxed) <= now_ns => self.ask(state),
            HALTING => self.tell(state),
            _ => return false,
        }
        true
    }

    fn ask(&self, state: u64) {
        let _ending = lock(&self.ending);
        if self.state.compare_exchange(state, state - RUNNING + HALTING, AcqRel, Acquire).is_ok() {
            self.halt_word.store(1, Release);
        }
    }

    fn tell(&self, state: u64) {
        let _ending = lock(&self.ending);
        if self.state.load(Acquire) == state {
            let thread = self.thread.load(Relaxed);
            // SAFETY: a system call without memory; the thread lives while a call of its is being ended, since it takes the lock to end it. A signal that arrives late finds the halt word cleared.
            let _ = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, HALT_SIGNAL) };
        }
    }
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    thread: Option<JoinHandle<()>>,
    over: Arc<AtomicU32>,
}

impl Watchdog {
    pub(crate) fn start(watches: Arc<[Watch]>, link: Link, limit_ns: u64) -> std::io::Result<Watchdog> {
        let over = Arc::new(AtomicU32::new(0));
        let seen = over.clone();
        let pause = Duration::from_nanos(limit_ns / 8).clamp(LOOK_MIN, LOOK_MAX);
        let thread = std::thread::Builder::new().name("atoll-watchdog".to_owned()).spawn(move || watch(&watches, &link, pause, &seen))?;
        Ok(Watchdog { thread: Some(thread), over })
    }
}

fn watch(watches: &[Watch], link: &Link, pause: Duration, over: &AtomicU32) {
    let mut must_end_at = None;
    while over.load(Acquire) == 0 {
        let mut now_ns = super::compute_unit::now_ns();
        if link.state() != State::Running {
            // Nobody waits for what still runs: after a moment every deadline has passed.
            let end = *must_end_at.get_or_insert(now_ns.saturating_add(ENDING_NS));
            now_ns = if now_ns >= end { u64::MAX } else { now_ns };
        }
        let is_ending = watches.iter().filter(|watch| watch.look(now_ns)).count() > 0;
        std::thread::park_timeout(if is_ending { GRACE } else { pause });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(1, Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The lock guards no data.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_ended_once_and_the_next_one_is_not() {
        let watch = Watch::default();
        watch.begin(100);
        assert!(!watch.look(99));
        assert!(watch.look(100));
        assert_eq!(watch.halt_word.load(Relaxed), 1);
        assert!(watch.end());
        assert_eq!(watch.halt_word.load(Relaxed), 0);
        watch.begin(200);
        assert!(!watch.look(150));
        assert!(!watch.end());
        assert!(!watch.look(u64::MAX));
    }
}
