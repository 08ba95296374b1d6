//! Leases, by their records, which the store does not read.

use super::Store;
use crate::error::StoreError;
use crate::lease::{LeaseChange, LeaseRecords};

impl Store {
    /// Writes a change of leases, all of it or nothing. It is durable when this returns.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn change_leases(&self, change: &LeaseChange) -> Result<(), StoreError> {
        self.lock().index.apply_leases(change)
    }

    /// All leases with their records, and the keys of those that have ended.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn leases(&self) -> Result<LeaseRecords, StoreError> {
        self.lock().index.leases()
    }
}
