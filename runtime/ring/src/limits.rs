//! All limits of rings, with the reason for each number.

use std::time::Duration;

/// Bytes of a slot of a ring: a record and its message. A message describes about 60 tensors.
pub const SLOT_BYTES: u64 = 4096;

/// Most bytes of a message: a slot without its record.
pub const MESSAGE_BYTES_MAX: usize = 4064;

/// Most slots of a ring: requests of a client that are not answered yet.
pub const SLOTS_MAX: u32 = 256;

/// Largest arena in bytes: room for inputs as large as the largest body over HTTP, and for outputs
/// of the same size.
pub const ARENA_BYTES_MAX: u64 = 256 << 20;

/// Longest time that a thread of the daemon spins for the next request of a ring before it sleeps.
/// For a client that pauses longer, the time to wake the thread does not matter.
pub const SPIN_MAX: Duration = Duration::from_millis(1);

/// How long a side sleeps at most before it checks whether the other one still exists.
pub const SLEEP_MAX: Duration = Duration::from_millis(100);
