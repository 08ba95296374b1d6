//! Limits of memory decisions, each with the reason for its value.

/// Released slots that a function keeps for its next invocations. With a few device queues no more
/// run at once; all of them are freed when memory is short.
pub const IDLE_SLOTS_PER_FUNCTION_MAX: usize = 8;

/// Slots that a function keeps for outputs that later invocations need. A request of a graph has one
/// for each stage at most, so these are requests in flight; the outputs of more are saved to host
/// memory.
pub const RETAINED_SLOTS_PER_FUNCTION_MAX: usize = 64;

/// Bytes of weights written before the engine checks for events again: about 50 µs, so that loading
/// a model causes no noticeable delay.
pub const LOAD_CHUNK_BYTES: usize = 256 << 10;

/// Cold invocations that are tried at a time, and constant sets that best-effort invocations load
/// at a time. Enough to overlap loads (unless minimum residency forbids it); few enough that
/// half-loaded constants do not fill the device.
pub const LOADS_MAX: usize = 4;

/// How many invocations may overtake the first cold one while there is no memory for it. They find
/// their constants on the device, so overtaking is cheap; without a limit a busy function could
/// starve the others.
pub const OVERTAKES_MAX: u32 = 16;

/// How long the first cold best-effort invocation respects the minimum residency of other
/// constants, as a multiple of its own loading time. If demand exceeds the device, loading then
/// takes about an eighth of the time. `docs/benchmarks/memory.md` has the gain and the waiting
/// times that were measured.
pub const LOADS_WAITED: u64 = 8;

/// The share of a device's memory that all sessions together may have, as numerator and
/// denominator. Sessions keep their memory between invocations; the rest has to hold the constants
/// and the memory of running invocations.
pub const SESSIONS_SHARE: (u64, u64) = (3, 4);
