//! Limits of the engine, each with the reason for its value. [`atoll_core::limits`] has those of
//! scheduling, [`atoll_core::memory::limits`] those of memory.

use std::time::Duration;

/// Invocations of one function that may wait, unless its options say otherwise. At tens of
/// milliseconds each this is already a second of waiting.
pub const FUNCTION_QUEUE_CAPACITY_DEFAULT: usize = 64;

/// Shape combinations that a function keeps bound. Enough for batches of 1 to 32; beyond that the
/// least recently used one is dropped.
pub const BINDINGS_PER_FUNCTION_MAX: usize = 32;

/// Largest number of shape combinations that a batching function keeps bound: one for each number
/// of rows, in addition to [`BINDINGS_PER_FUNCTION_MAX`].
pub const BINDINGS_OF_BATCHES_MAX: usize = 256;

/// A batch may take this part of the device's memory: one divided by this. One batch runs while
/// another is prepared, and other functions need memory as well. A single request may take more.
pub const BATCH_MEMORY_DIVISOR: u64 = 8;

/// Sessions that one tenant may have open on a device. This limits the table; their bytes are
/// limited by [`atoll_core::memory::limits::SESSIONS_SHARE`] and the tenant's quota.
pub const SESSIONS_PER_TENANT_MAX: usize = 4096;

/// How long a session is kept without a step, unless the client chooses: enough for a person to
/// read an answer before the next question.
pub const SESSION_IDLE_DEFAULT: Duration = Duration::from_secs(60);

/// Maximum number of blocks of one launch of a CUDA session. Its progress map has a byte for each
/// block.
pub const FLUSH_BLOCKS_MAX: u64 = 1 << 26;

/// Minimum memory of a flush of a CUDA session, in bytes. Small flushes all have this size, so each
/// can reuse the memory of the previous one.
pub const FLUSH_BYTES_MIN: u64 = 64 << 10;

/// Functions that one chain may call. Each has its own memory for as long as the chain runs.
pub const CHAIN_STAGES_MAX: usize = 64;

/// Launches of one invocation whose times are kept for a client that requests them: 3 MiB. A model
/// with a loop may have more launches.
pub const LAUNCH_TIMES_MAX: usize = 1 << 16;

/// Iterations that all loops of one function together may run in one invocation; each stage of a
/// chain has its own count. At ten microseconds each this is ten seconds. A loop that runs longer
/// is taken for endless. `trips_max` of a loop in a bundle may be smaller.
pub const LOOP_ITERATIONS_MAX: u64 = 1 << 20;

/// Default overcommit ratio: total constant bytes of all functions, as a multiple of device memory.
pub const MEMORY_OVERCOMMIT_DEFAULT: f64 = 4.0;

/// Trace records that are kept, 4 MiB: some seconds of a busy device. A reader that polls twenty
/// times a second can keep up.
pub const TRACE_RECORDS_MAX: usize = 1 << 16;

/// Trace records per batch: copying them takes the engine's thread some tens of microseconds.
pub const TRACE_BATCH_MAX: usize = 4096;

/// Chunk records taken from each compute unit per batch, for the same reason.
pub const TRACE_CHUNKS_MAX: u64 = 1024;

/// Recent launches that chunk records are checked against: more than run between two polls of a
/// reader.
pub const TRACE_LAUNCHES_MAX: usize = 1 << 14;

/// Unloaded functions whose names are kept for trace records.
pub const TRACE_FUNCTIONS_GONE_MAX: usize = 256;

/// How long the engine's thread spins for the next completion before it sleeps, if it has a core to
/// itself. Waking up costs several times the duration of a short kernel.
pub const SPIN_NS: u64 = 20_000;

/// Without a core of its own the thread spins only behind launches shorter than this, and at most
/// for this long: such a launch ends before the thread could sleep and wake up.
pub const SHORT_SPIN_NS: u64 = 3_000;

/// The least gain for which branches of an invocation run concurrently, unless the configuration
/// says otherwise. It has to exceed the cost of starting and joining two branches: at both points
/// the engine has to handle a completion before the next launch, and to wake a compute unit.
/// Measured by `atoll bench branches`.
pub const BRANCH_GAIN_MIN: Duration = Duration::from_micros(100);

/// Invocations of a shape combination that run in order before forks are planned; the first ones
/// find cold caches.
pub const BRANCH_RUNS_MEASURED: u32 = 4;

/// How long a shutdown waits for launches in flight after it has cancelled everything. A kernel
/// that runs longer is stuck.
pub const SHUTDOWN_CANCEL_GRACE: Duration = Duration::from_secs(2);
