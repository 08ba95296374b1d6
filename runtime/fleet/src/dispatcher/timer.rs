//! A thread that wakes the pool at the time for which it asked, such as the deadline of a waiting
//! request.

use super::{Dispatcher, Inner};
use atoll_core::Nanos;
use atoll_core::placement::PoolEvent;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The next time at which the pool wants to be woken.
#[derive(Clone, Default)]
pub(super) struct Timer(Arc<(Mutex<Next>, Condvar)>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Next {
    at: Option<Nanos>,
    is_closed: bool,
}

impl Timer {
    /// Starts the thread. It ends when the dispatcher is dropped.
    pub(super) fn start(&self, inner: Weak<Inner>, started: Instant) -> std::io::Result<()> {
        let timer = self.clone();
        let run = move || {
            while timer.wait(started) {
                let Some(inner) = inner.upgrade() else { return };
                Dispatcher(inner).with(|state, now, steps| state.handle(now, PoolEvent::Tick, steps));
            }
        };
        std::thread::Builder::new().name("atoll-pool".into()).spawn(run).map(drop)
    }

    /// Sets the time of the next wake-up.
    pub(super) fn set(&self, at: Option<Nanos>) {
        self.change(|next| next.at = at);
    }

    /// Ends the thread.
    pub(super) fn close(&self) {
        self.change(|next| next.is_closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Next)) {
        let mut next = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *next;
        change(&mut next);
        if *next != before {
            self.0.1.notify_one();
        }
    }

    /// Waits for the next wake-up. Returns `false` once the timer is closed.
    fn wait(&self, started: Instant) -> bool {
        let mut next = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !next.is_closed {
            let left = next.at.map(|at| Duration::from_nanos(at.0).saturating_sub(started.elapsed()));
            next = match left {
                Some(Duration::ZERO) => {
                    next.at = None;
                    return true;
                }
                Some(left) => self.0.1.wait_timeout(next, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.0.1.wait(next).unwrap_or_else(PoisonError::into_inner),
            };
        }
        false
    }
}
