//! A thread that wakes the pool when the deadline of a waiting request passes.

use super::{Dispatcher, Inner};
use atoll_core::Nanos;
use atoll_core::placement::PoolEvent;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

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
    pub(super) fn start(&self, inner: Weak<Inner>) -> std::io::Result<JoinHandle<()>> {
        let timer = self.clone();
        std::thread::Builder::new().name("atoll-pool".into()).spawn(move || {
            while let Some(dispatcher) = timer.wait(&inner) {
                dispatcher.with(|state, now, steps| state.handle(now, PoolEvent::Tick, steps));
            }
        })
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

    /// Waits for the next wake-up. `None` if the dispatcher is gone.
    fn wait(&self, inner: &Weak<Inner>) -> Option<Dispatcher> {
        let mut next = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if next.is_closed {
                return None;
            }
            let left = match next.at {
                None => None,
                Some(at) => {
                    let dispatcher = Dispatcher(inner.upgrade()?);
                    let now = dispatcher.0.now();
                    if now >= at {
                        next.at = None;
                        return Some(dispatcher);
                    }
                    Some(Duration::from_nanos(at.0 - now.0))
                }
            };
            next = match left {
                None => self.0.1.wait(next).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.0.1.wait_timeout(next, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}
