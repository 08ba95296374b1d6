//! Limits of leases, with the reason for each number.

use atoll_core::Nanos;

const SECOND: u64 = 1_000_000_000;

/// Shortest time to live: a holder renews three times in it, and a pause of its process of a second
/// must not end its lease.
pub const TTL_MIN: Nanos = Nanos(5 * SECOND);

/// Longest time to live. What a dead holder keeps from others is at most this.
pub const TTL_MAX: Nanos = Nanos(600 * SECOND);

/// Leases of a daemon: a hundred on each of ten devices, ten times.
pub const LEASES_MAX: usize = 10_000;

/// How long the key of a request is remembered after its lease ended, so that a late repetition
/// gets no second lease. Longer than any client retries.
pub const KEY_MEMORY: Nanos = Nanos(600 * SECOND);

/// Keys of ended leases. The oldest are forgotten first.
pub const ENDED_KEYS_MAX: usize = 20_000;

/// Bytes of a holder's name.
pub const HOLDER_BYTES_MAX: usize = 256;

/// Real-time slots of a device.
pub const SLOTS_MAX: u32 = 1024;
