//! The counts of a session.

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
}
