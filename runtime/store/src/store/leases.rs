//! Records of leases. The store does not interpret them.

use super::Store;
use crate::error::StoreError;
use crate::lease::{LeaseChange, LeaseRecords};

impl Store {
    /// Writes a change of leases atomically. It is durable when this returns.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn change_leases(&self, change: &LeaseChange) -> Result<(), StoreError> {
        self.lock().index.apply_leases(change)
    }

    /// All leases with their records, and the keys of ended leases.
    ///
    /// # Errors
    /// If the index cannot be read.
    pub fn leases(&self) -> Result<LeaseRecords, StoreError> {
        self.lock().index.leases()
    }
}
