//! Leases in the store. The store does not interpret their records.

/// The leases of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecords {
    /// The leases with their records, by number.
    pub leases: Vec<(u64, String)>,
    /// Keys of ended leases.
    pub ended: Vec<[u8; 16]>,
    /// The highest number of leases and epochs that was used.
    pub last: u64,
}

/// A set of changes of leases. They are applied atomically, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseChange {
    /// Leases to write with their records, in place of earlier ones.
    pub keep: Vec<(u64, String)>,
    /// Leases that ended, with their keys.
    pub end: Vec<(u64, [u8; 16])>,
    /// Keys of ended leases to remove.
    pub forget: Vec<[u8; 16]>,
    /// The highest number that was used; `None` if it has not changed.
    pub last: Option<u64>,
}

impl LeaseChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == LeaseChange::default()
    }
}
