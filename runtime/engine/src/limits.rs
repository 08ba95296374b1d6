//! Every bound of the engine, with the reason for the number. Those of scheduling stand in [`atoll_core::limits`].

use std::time::Duration;

/// Invocations of one function that may wait, unless its options say otherwise. At tens of milliseconds each this is already a second of waiting.
pub const FUNCTION_QUEUE_CAPACITY_DEFAULT: usize = 64;

/// Sets of shapes a function keeps prepared. Serving batches of 1 to 32 fits; beyond it the one used longest ago is prepared anew.
pub const BINDINGS_PER_FUNCTION_MAX: usize = 32;

/// Released allocations a function keeps for its next invocations. More never run at once with a few device queues; all of them are given back when memory is short.
pub const IDLE_INSTANCES_PER_FUNCTION_MAX: usize = 8;

/// Bytes of weights written between two looks at the events: about 50 µs, so that loading a model delays nobody noticeably.
pub const LOAD_CHUNK_BYTES: usize = 256 << 10;

/// Functions that one chain may call. Each has memory of its own for as long as the chain runs.
pub const CHAIN_STAGES_MAX: usize = 64;

/// Cold invocations that memory is looked for at a time, and sets of constants that best-effort ones load at a time: enough that the next one is on its way when one is there, unless it spares others, few enough
/// that half-loaded constants do not fill the device.
pub const LOADS_MAX: usize = 4;

/// Invocations that may go ahead of the first cold one while there is no memory for it. They find their constants in place, so that letting some pass costs little; without a bound a busy
/// function would keep the others away for ever.
pub const OVERTAKES_MAX: u32 = 16;

/// For how many times as long as its own loading takes a cold best-effort invocation, once it is the first in turn, leaves alone what was in use a moment ago. Where more is asked for than fits,
/// loading then takes about a quarter of the time; what that is worth, and who waits for it, is in `BENCHMARKS.md` (many functions on one device).
pub const LOADS_WAITED: u64 = 4;

/// By how much the constants of all functions may exceed the device's memory, unless the configuration says otherwise.
pub const MEMORY_OVERCOMMIT_DEFAULT: f64 = 4.0;

/// Records of what happened that are kept, 4 MiB of them: some seconds of a busy device, and as much as a reader that asks twenty times a second may miss.
pub const TRACE_RECORDS_MAX: usize = 1 << 16;

/// Records that are given out at a time: copying them takes the engine's thread some tens of microseconds.
pub const TRACE_BATCH_MAX: usize = 4096;

/// Chunks that are taken from each compute unit at a time, likewise.
pub const TRACE_CHUNKS_MAX: u64 = 1024;

/// Launches of late to which chunks are held: more than run between two questions of a reader.
pub const TRACE_LAUNCHES_MAX: usize = 1 << 14;

/// Functions that are no longer loaded and whose names are kept for records of them.
pub const TRACE_FUNCTIONS_GONE_MAX: usize = 256;

/// How long the engine's thread looks for the next completion before it sleeps, where a core is left for that: what being woken costs a short kernel, several times over.
pub const SPIN_NS: u64 = 20_000;

/// Where no core is left it looks only behind a launch as short as this, and for as long: the next one would have ended before the thread was asleep and awake again.
pub const SHORT_SPIN_NS: u64 = 3_000;

/// How long a shutdown waits for launches in flight after it has cancelled everything. A kernel that takes longer is stuck.
pub const SHUTDOWN_CANCEL_GRACE: Duration = Duration::from_secs(2);
