//! A lock that returns an error, instead of a deadlock, when its own thread locks it again.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A value that one thread uses at a time.
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    /// The thread that uses the value. Only that thread writes its own id here, and removes it.
    user: Mutex<Option<ThreadId>>,
}

/// The right to use the value. Ends when it is dropped.
pub(crate) struct Held<'a, T> {
    of: &'a Exclusive<T>,
    value: MutexGuard<'a, T>,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Exclusive<T> {
        Exclusive { value: Mutex::new(value), user: Mutex::new(None) }
    }

    /// Waits until no other thread uses the value. Returns `None` if this thread already uses it.
    pub(crate) fn lock(&self) -> Option<Held<'_, T>> {
        let this = Some(thread::current().id());
        if *self.user() == this {
            return None;
        }
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        *self.user() = this;
        Some(Held { of: self, value })
    }

    fn user(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.user.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        // Before the field `value` unlocks its mutex.
        *self.of.user() = None;
    }
}
