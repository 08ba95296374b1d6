//! Moments that a stream comes to.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// When a stream got somewhere.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    at: Mutex<Option<Instant>>,
    came: Condvar,
}

impl Moment {
    /// The stream is there.
    pub(crate) fn come(&self) {
        lock(&self.at).get_or_insert_with(Instant::now);
        self.came.notify_all();
    }

    /// When that was, once it was.
    pub(crate) fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    pub(crate) fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.came.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
