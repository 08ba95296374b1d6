//! When the renewals arrived that wait for the ledger: they count from then.

use atoll_core::Nanos;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The arrivals of the renewals that wait, with how many arrived at that time.
#[derive(Clone, Default)]
pub(super) struct Arrivals(Arc<Mutex<BTreeMap<Nanos, u32>>>);

/// A renewal that waits. It does so until this is dropped.
pub(crate) struct Arrived {
    all: Arrivals,
    at: Nanos,
}

impl Arrivals {
    /// Notes a renewal that arrives now.
    pub(super) fn note(&self, now: impl FnOnce() -> Nanos) -> Arrived {
        let mut all = self.lock();
        // Under the lock: what `first` does not see arrived after the time that its caller has read.
        let at = now();
        *all.entry(at).or_default() += 1;
        Arrived { all: self.clone(), at }
    }

    /// When the first one that waits arrived.
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
