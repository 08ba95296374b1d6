//! Leases in the index: their records, and the keys of ended leases.

use super::Index;
use crate::error::StoreError;
use crate::lease::{LeaseChange, LeaseRecords};
use redb::{ReadableDatabase, ReadableTable, TableDefinition};

/// Number of a lease → its record as text. Older indices have none of the three tables of leases.
const LEASES: TableDefinition<u64, &str> = TableDefinition::new("leases");
/// Keys of leases that have ended.
const LEASE_KEYS: TableDefinition<&[u8; 16], ()> = TableDefinition::new("lease_keys");
/// [`LAST`] → the highest number of leases and epochs that was used.
const LEASE_NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("lease_numbers");

const LAST: &str = "last";

impl Index {
    /// Writes a change of leases. It is durable when this returns.
    pub(crate) fn apply_leases(&mut self, change: &LeaseChange) -> Result<(), StoreError> {
        self.write(|transaction| {
            let mut leases = transaction.open_table(LEASES)?;
            let mut keys = transaction.open_table(LEASE_KEYS)?;
            for (lease, record) in &change.keep {
                leases.insert(lease, record.as_str())?;
            }
            for (lease, key) in &change.end {
                leases.remove(lease)?;
                keys.insert(key, ())?;
            }
            for key in &change.forget {
                keys.remove(key)?;
            }
            if let Some(last) = change.last {
                transaction.open_table(LEASE_NUMBERS)?.insert(LAST, last)?;
            }
            Ok(())
        })
    }

    /// Reads the leases. Empty if an older daemon wrote the index.
    pub(crate) fn leases(&mut self) -> Result<LeaseRecords, StoreError> {
        let read = read(self.database()?);
        read.map_err(|error| self.failed(error))
    }
}

fn read(database: &redb::Database) -> Result<LeaseRecords, redb::Error> {
    let transaction = database.begin_read()?;
    let mut records = LeaseRecords::default();
    match transaction.open_table(LEASES) {
        // The first grant creates all three tables, so there are no leases yet.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(records),
        table => {
            for entry in table?.iter()? {
                let (lease, record) = entry?;
                records.leases.push((lease.value(), record.value().into()));
            }
        }
    }
    for entry in transaction.open_table(LEASE_KEYS)?.iter()? {
        records.ended.push(*entry?.0.value());
    }
    records.last = match transaction.open_table(LEASE_NUMBERS) {
        Err(redb::TableError::TableDoesNotExist(_)) => 0,
        table => table?.get(LAST)?.map_or(0, |last| last.value()),
    };
    Ok(records)
}
