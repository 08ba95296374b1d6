//! All limits of the store, with the reason for each number.

/// Most objects of a tenant, regardless of its quota. An entry takes about 200 bytes of memory, so
/// a tenant can use at most 20 MB of the daemon's memory.
pub const TENANT_OBJECTS_MAX: u64 = 100_000;

/// Most objects of all tenants that are in memory as well as on disk. Each takes a file descriptor,
/// and a daemon often has 65,536 file descriptors in all.
pub const MEMORY_OBJECTS_MAX: usize = 8192;
