//! Every bound of the store, with the reason for the number.

/// Objects a tenant may have, whatever its quota says: with their entries in memory, at some 200
/// bytes each, a tenant cannot take more than 20 MB of the daemon.
pub const TENANT_OBJECTS_MAX: u64 = 100_000;
