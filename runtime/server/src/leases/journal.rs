//! Changes of leases on their way to the store.

use atoll_store::{LeaseChange, StoreError};

/// What is not written down yet. A change that cannot be written stays, and is written with the next
/// one, so that a record never outlives its lease until the next start of the daemon.
#[derive(Default)]
pub(super) struct Journal {
    change: LeaseChange,
    has_failed: bool,
}

impl Journal {
    /// A lease has to be written, in place of what was to be written of it before. `last` is the
    /// highest number so far.
    pub(super) fn keep(&mut self, lease: u64, record: String, last: u64) {
        self.change.keep.retain(|(other, _)| *other != lease);
        self.change.keep.push((lease, record));
        self.change.last = Some(last);
    }

    /// A lease has ended.
    pub(super) fn end(&mut self, lease: u64, key: [u8; 16]) {
        // Keys are forgotten last of all, and this one was used again.
        self.change.forget.retain(|other| *other != key);
        self.change.end.push((lease, key));
    }

    /// The key of an ended lease is to be forgotten.
    pub(super) fn forget(&mut self, key: [u8; 16]) {
        self.change.forget.push(key);
    }

    /// Whether all is written.
    pub(super) fn is_empty(&self) -> bool {
        self.change.is_empty()
    }

    /// Writes all of it, or nothing.
    pub(super) fn write(
        &mut self,
        write: impl FnOnce(&LeaseChange) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        if let Err(error) = write(&self.change) {
            // Not with each attempt.
            if !std::mem::replace(&mut self.has_failed, true) {
                tracing::error!(%error, "a change of leases cannot be written down; it is tried again");
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
