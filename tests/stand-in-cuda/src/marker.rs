//! Markers: points in streams.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A point in a stream, and when the stream passed it.
#[derive(Debug, Default)]
pub(crate) struct Marker {
    at: Mutex<Option<Instant>>,
    passed: Condvar,
}

impl Marker {
    /// Records that the stream passed the point.
    pub(crate) fn pass(&self) {
        lock(&self.at).get_or_insert_with(Instant::now);
        self.passed.notify_all();
    }

    /// When the stream passed it; `None` before.
    pub(crate) fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }

    pub(crate) fn wait(&self) {
        let mut at = lock(&self.at);
        while at.is_none() {
            at = self.passed.wait(at).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
