//! Changes of leases that are not written to the store yet.

use atoll_store::{LeaseChange, StoreError};

/// Changes that are not written yet. A change that cannot be written is kept and written with the
/// next one. Otherwise the record of an ended lease could stay in the store, and the next start of
/// the daemon would restore it.
#[derive(Default)]
pub(super) struct Journal {
    change: LeaseChange,
    has_failed: bool,
}

impl Journal {
    /// Adds the record of a lease, in place of an earlier record of it that is not written yet.
    /// `last` is the highest number so far.
    pub(super) fn keep(&mut self, lease: u64, record: String, last: u64) {
        self.change.keep.retain(|(other, _)| *other != lease);
        self.change.keep.push((lease, record));
        self.change.last = Some(last);
    }

    /// Adds the end of a lease.
    pub(super) fn end(&mut self, lease: u64, key: [u8; 16]) {
        // The store forgets keys after all other changes, and this key was used again.
        self.change.forget.retain(|other| *other != key);
        self.change.end.push((lease, key));
    }

    /// Adds that the key of an ended lease is forgotten.
    pub(super) fn forget(&mut self, key: [u8; 16]) {
        self.change.forget.push(key);
    }

    /// Whether all changes are written.
    pub(super) fn is_empty(&self) -> bool {
        self.change.is_empty()
    }

    /// Writes all changes or, on an error, none.
    pub(super) fn write(
        &mut self,
        write: impl FnOnce(&LeaseChange) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        if let Err(error) = write(&self.change) {
            // Logs only the first of several failures.
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::error!(%error, "a change of leases cannot be written; the daemon will try again");
            }
            return Err(error);
        }
        (self.change, self.has_failed) = (LeaseChange::default(), false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_fails_is_written_with_the_next_one() {
        let mut journal = Journal::default();
        journal.keep(1, "first".into(), 2);
        journal.forget([7; 16]);
        assert!(journal.write(|_| Err(StoreError::DiskFull { folder: "state".into() })).is_err());
        journal.keep(1, "second".into(), 3);
        journal.end(4, [7; 16]);
        let mut written = None;
        let mut write = |change: &LeaseChange| {
            written = Some(change.clone());
            Ok(())
        };
        journal.write(&mut write).unwrap();
        journal.write(&mut write).unwrap();
        assert!(journal.is_empty());
        let change =
            LeaseChange { keep: vec![(1, "second".into())], end: vec![(4, [7; 16])], forget: vec![], last: Some(3) };
        assert_eq!(written, Some(change), "the key of a lease that ended stays");
    }
}
