//! Which functions have their constants on the device, for a fleet that places requests by it.

use crate::config::FunctionKey;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The functions whose constants came to the device or left it since the fleet asked last, each with
/// its latest state. Its size is bounded by the number of functions.
#[derive(Debug, Default)]
pub(crate) struct ResidencyChanges {
    /// Whether `latest` has entries, so that asking takes no lock while there are none.
    any: AtomicBool,
    /// No other lock is taken while it is held.
    latest: Mutex<BTreeMap<FunctionKey, bool>>,
}

impl ResidencyChanges {
    /// Notes that the constants of a function are on the device or being loaded, or that they are
    /// not.
    pub(crate) fn note(&self, function: &FunctionKey, is_resident: bool) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.insert(function.clone(), is_resident);
        self.any.store(true, Ordering::Release);
    }

    /// Drops what was noted about a function that is unloaded.
    pub(crate) fn forget(&self, function: &FunctionKey) {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).remove(function);
    }

    /// Takes the changes.
    pub(crate) fn take(&self) -> Vec<(FunctionKey, bool)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *latest).into_iter().collect()
    }
}
