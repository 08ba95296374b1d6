//! Bounds of memory decisions, with the reason for each number.

/// Released allocations a function keeps for its next invocations. More never run at once with a
/// few device queues; all of them are given back when memory is short.
pub const IDLE_SLOTS_PER_FUNCTION_MAX: usize = 8;

/// Bytes of weights written between two looks at the events: about 50 µs, so that loading a model
/// delays nobody noticeably.
pub const LOAD_CHUNK_BYTES: usize = 256 << 10;

/// Cold invocations that memory is looked for at a time, and sets of constants that best-effort
/// ones load at a time: enough that the next one is on its way when one is there, unless it
/// leaves others their minimum residency, few enough that half-loaded constants do not fill the
/// device.
pub const LOADS_MAX: usize = 4;

/// Invocations that may go ahead of the first cold one while there is no memory for it. They find
/// their constants in place, so that letting some pass costs little; without a bound a busy
/// function would keep the others away for ever.
pub const OVERTAKES_MAX: u32 = 16;

/// For how many times as long as its own loading takes a cold best-effort invocation, once it is
/// the first in turn, leaves others their minimum residency. Where more is asked for than fits,
/// loading then takes about an eighth of the time; what that is worth, and who waits for it, is in
/// `BENCHMARKS.md` (many functions on one device).
pub const LOADS_WAITED: u64 = 8;

/// The part of a device's memory that sessions may have together, as numerator and denominator:
/// they keep what they have between invocations, and what is left has to hold the constants and the
/// memory of those that run.
pub const SESSIONS_SHARE: (u64, u64) = (3, 4);
