//! Arrival times of renewals that wait for the ledger. A renewal that arrived in time is accepted,
//! however long it waits for the lock.

use atoll_core::Nanos;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The arrival times of waiting renewals, each with the number of renewals that arrived then.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<BTreeMap<Nanos, u32>>>);

/// A renewal that counts as waiting until this is dropped.
pub(crate) struct Arrived {
    all: Arrivals,
    at: Nanos,
}

impl Arrivals {
    /// Notes that a renewal arrives now.
    pub(super) fn note(&self, now: impl FnOnce() -> Nanos) -> Arrived {
        let mut all = self.lock();
        // The time is read under the lock. So a renewal that `first` does not see arrives after the
        // time that the caller of `first` read before.
        let at = now();
        *all.entry(at).or_default() += 1;
        Arrived { all: self.clone(), at }
    }

    /// The arrival time of the earliest waiting renewal.
    pub(super) fn first(&self) -> Option<Nanos> {
        self.lock().keys().next().copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nanos, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(count) = all.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.at);
            }
        }
    }
}
