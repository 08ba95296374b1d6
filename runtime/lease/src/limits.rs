//! Limits of leases, with the reason for each number.

use atoll_core::Nanos;

const SECOND: u64 = 1_000_000_000;

/// Shortest time to live. A holder renews three times in it, so a pause of one second in the
/// holder's process does not end its lease.
pub const TTL_MIN: Nanos = Nanos(5 * SECOND);

/// Longest time to live. A dead holder blocks its resources for at most this long.
pub const TTL_MAX: Nanos = Nanos(600 * SECOND);

/// Most leases of a daemon: ten times a hundred leases on each of ten devices.
pub const LEASES_MAX: usize = 10_000;

/// How long the key of a request is remembered after its lease ended, so that a late repetition
/// gets no second lease. Longer than any client retries.
pub const KEY_MEMORY: Nanos = Nanos(600 * SECOND);

/// Most keys of ended leases that are remembered. The oldest are forgotten first.
pub const ENDED_KEYS_MAX: usize = 20_000;

/// Longest name of a holder, in bytes.
pub const HOLDER_BYTES_MAX: usize = 256;

/// Most real-time slots of a device, and of a lease.
pub const SLOTS_MAX: u32 = 1024;
