//! The watchdog: a thread that ends kernel calls. It checks every compute unit periodically for
//! calls that exceed their time limit, and at once when the engine aborts a launch.
//!
//! It first sets the call's halt word, which kernels poll while they wait for other threads, and
//! then sends a signal (`fault`). An aborted launch gets the signal at once, since its state no
//! longer matters. The watchdog and a compute unit communicate through one word per compute unit.
//! Only a call that is being ended takes the lock, so an ordinary call costs two atomic stores and
//! an exchange.

use super::device_side::Shared;
use atoll_core::LaunchId;
use atoll_device::link::UnitWords;
use atoll_device::link::{Link, State};
use atoll_device::now_ns;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a call may continue after its halt word was set, before it gets the signal; and again
/// after each signal that found it inside a helper.
const GRACE: Duration = Duration::from_millis(1);

/// Bounds of the interval between checks; in between, it is an eighth of the time limit.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(2);
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Longest interval while blocks run. It bounds the delay of an interruption whose signal was lost,
/// or for which no signal was sent because blocks used to be short.
const CHECK_INTERVAL_BUSY: Duration = Duration::from_millis(5);

/// How long calls may still run once the device ends, in nanoseconds.
const ENDING_NS: u64 = 1_000_000_000;

/// Phases of a call, in the lowest bits of [`Watch::state`]; the bits above count calls.
const IDLE: u64 = 0;
const RUNNING: u64 = 1;
const HALTING: u64 = 2;
const PHASES: u64 = 4;

/// The watchdog's view of one compute unit, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Watch {
    state: AtomicU64,
    /// When the call must be over; monotonic nanoseconds.
    deadline_ns: AtomicU64,
    /// The launch of the call, and its queue.
    launch: AtomicU64,
    queue: AtomicU32,
    halt_word: AtomicU32,
    /// When the call may first be interrupted; monotonic nanoseconds.
    interruptible_from_ns: AtomicU64,
    /// Held while a call that is being ended changes its state.
    ending: Mutex<()>,
}

impl Watch {
    /// The word that the kernel of a call polls.
    pub(crate) fn halt_word(&self) -> &AtomicU32 {
        &self.halt_word
    }

    /// Records that a call begins.
    pub(crate) fn begin(&self, queue: u32, launch: LaunchId, deadline_ns: u64, interruptible_from_ns: u64) {
        self.queue.store(queue, Relaxed);
        self.launch.store(launch.0, Relaxed);
        self.deadline_ns.store(deadline_ns, Relaxed);
        self.interruptible_from_ns.store(interruptible_from_ns, Relaxed);
        self.state.store(self.state.load(Relaxed) + PHASES + RUNNING, Release);
    }

    /// Records that the call is over; true if the watchdog was ending it.
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

    /// Starts to end the call of a compute unit if the call exceeds its limit at `now_ns` or its
    /// launch was aborted; true while the call is being ended. Otherwise interrupts the call if it
    /// must stop for a more urgent queue and may be interrupted.
    fn check(&self, unit: UnitWords<'_>, now_ns: u64, link: &Link, process: i32) -> bool {
        let state = self.state.load(Acquire);
        let signal = || unit.signal(process);
        match state % PHASES {
            // These values are read after the state. If the exchange succeeds, they belong to the
            // same call as the state.
            RUNNING if link.is_aborted(self.queue.load(Relaxed), LaunchId(self.launch.load(Relaxed))) => {
                if self.request_halt(state) {
                    self.signal_halt(halting(state), signal);
                }
            }
            RUNNING if self.deadline_ns.load(Relaxed) <= now_ns => drop(self.request_halt(state)),
            HALTING => self.signal_halt(state, signal),
            RUNNING
                if self.interruptible_from_ns.load(Relaxed) <= now_ns
                    && link.stop_word(self.queue.load(Relaxed)).load(Relaxed) != 0 =>
            {
                signal();
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Sets the halt word; false if the call is already over.
    fn request_halt(&self, state: u64) -> bool {
        let _ending = lock(&self.ending);
        let is_in_time = self.state.compare_exchange(state, halting(state), AcqRel, Acquire).is_ok();
        if is_in_time {
            self.halt_word.store(1, Release);
        }
        is_in_time
    }

    fn signal_halt(&self, state: u64, signal: impl Fn()) {
        let _ending = lock(&self.ending);
        if self.state.load(Acquire) == state {
            signal();
        }
    }
}

/// The state of a running call once it is being ended.
fn halting(running: u64) -> u64 {
    running - RUNNING + HALTING
}

/// The watchdog's thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Watchdog {
    thread: Option<JoinHandle<()>>,
    over: Arc<AtomicU32>,
    shared: Arc<Shared>,
}

impl Watchdog {
    pub(crate) fn start(shared: Arc<Shared>, started: Sender<()>) -> std::io::Result<Watchdog> {
        let over = Arc::new(AtomicU32::new(0));
        let (seen, watched) = (over.clone(), shared.clone());
        let thread = std::thread::Builder::new().name("atoll-watchdog".to_owned()).spawn(move || {
            let _ = started.send(());
            drop(started);
            watch(&watched, &seen);
        })?;
        Ok(Watchdog { thread: Some(thread), over, shared })
    }
}

fn watch(shared: &Shared, over: &AtomicU32) {
    let link = &shared.link;
    let pause = Duration::from_nanos(shared.time_limit_ns / 8).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
    let (mut end_at, mut answered) = (None, link.abort_bell().ticket());
    while over.load(Acquire) == 0 {
        link.beat_word().fetch_add(1, Relaxed);
        let ticket = link.abort_bell().ticket();
        let mut latest_ns = now_ns();
        if link.state() != State::Running {
            // Running calls get a moment to end; then every deadline counts as passed.
            let end = *end_at.get_or_insert(latest_ns.saturating_add(ENDING_NS));
            latest_ns = if latest_ns >= end { u64::MAX } else { latest_ns };
        }
        let check = |(watch, unit): (&Watch, u32)| watch.check(link.unit(unit), latest_ns, link, shared.process);
        let is_ending = shared.watches.iter().zip(0..).map(check).fold(false, |any, is_ending| any | is_ending);
        // After an abort, checks again soon, to find a call that was just beginning.
        let abort_requested = std::mem::replace(&mut answered, ticket) != ticket;
        if abort_requested
            && link.state() == State::Running
            && let Err(corrupt) = shared.clear_heads(now_ns())
        {
            tracing::error!(%corrupt, "the device is lost");
            shared.mark_lost();
        }
        let is_busy = shared.running.load(Relaxed) > 0;
        link.abort_bell().sleep_for(
            ticket,
            if is_ending || abort_requested {
                GRACE
            } else if is_busy {
                pause.min(CHECK_INTERVAL_BUSY)
            } else {
                pause
            },
        );
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(1, Release);
        if let Some(thread) = self.thread.take() {
            self.shared.link.abort_bell().ring(1);
            let _ = thread.join();
        }
    }
}

/// The lock guards no data, so a panic does not matter.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Stops;
    use atoll_device::link::LinkShape;

    const LAUNCH: LaunchId = LaunchId(7);

    fn link(queues: u32) -> Link {
        Link::create(LinkShape { queues, paired_queues: false, lane_queues: 0, capacity: 1, compute_units: 1 }).unwrap()
    }

    fn begin(watch: &Watch, deadline_ns: u64) {
        watch.begin(0, LAUNCH, deadline_ns, Stops::NEVER);
    }

    fn look(watch: &Watch, now_ns: u64, link: &Link) -> bool {
        watch.check(link.unit(0), now_ns, link, rustix::process::getpid().as_raw_nonzero().get())
    }

    #[test]
    fn a_call_is_ended_once_and_the_next_one_is_not() {
        let (watch, link) = (Watch::default(), link(1));
        begin(&watch, 100);
        assert!(!look(&watch, 99, &link));
        assert!(look(&watch, 100, &link));
        assert_eq!(watch.halt_word.load(Relaxed), 1);
        assert!(watch.end());
        assert_eq!(watch.halt_word.load(Relaxed), 0);
        begin(&watch, 200);
        assert!(!look(&watch, 150, &link));
        assert!(!watch.end());
        assert!(!look(&watch, u64::MAX, &link));
    }

    #[test]
    fn only_the_aborted_launch_is_ended() {
        let (watch, link) = (Watch::default(), link(2));
        link.abort(1, LAUNCH);
        for (queue, launch, is_meant) in
            [(1, LAUNCH, true), (0, LAUNCH, false), (1, LaunchId(8), false), (1, LaunchId(6), false)]
        {
            watch.begin(queue, launch, u64::MAX, Stops::NEVER);
            assert_eq!((look(&watch, 0, &link), watch.end()), (is_meant, is_meant), "{launch:?} in queue {queue}");
        }
    }
}
