//! The counts of a session.

/// The stored functions of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCounts {
    /// Functions that are stored.
    pub functions: u64,
    /// Bytes of their records, and of the places of their inputs.
    pub bytes: u64,
    /// Functions that were stored so far.
    pub stores: u64,
    /// Runs that were sent as a call of a stored function.
    pub calls: u64,
    /// Runs that differed from a stored function, and were sent as their calls.
    pub differences: u64,
}

/// What a session has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Recorded calls.
    pub calls: u64,
    /// Messages from the client.
    pub messages: u64,
    /// Messages that the server answered.
    pub answers: u64,
    /// Kernel launches.
    pub launches: u64,
    /// Allocations.
    pub allocations: u64,
    /// Copies to the device.
    pub copies_in: u64,
    /// Bytes copied to the device.
    pub bytes_in: u64,
    /// Copies from the device.
    pub copies_out: u64,
    /// Bytes copied from the device.
    pub bytes_out: u64,
    /// Module images that were sent.
    pub images: u64,
    /// Calls that failed.
    pub failures: u64,
    /// Records that the client sent. A run that is sent as a call of a stored function is one.
    pub records: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// Stored functions, and how often they were used.
    pub stored: StoredCounts,
}
