//! Every bound of the engine, with the reason for the number. Those of scheduling stand in
//! [`atoll_core::limits`], those of memory in [`atoll_core::memory::limits`].

use std::time::Duration;

/// Invocations of one function that may wait, unless its options say otherwise. At tens of
/// milliseconds each this is already a second of waiting.
pub const FUNCTION_QUEUE_CAPACITY_DEFAULT: usize = 64;

/// Sets of shapes a function keeps prepared. Serving batches of 1 to 32 fits; beyond it the one
/// used longest ago is prepared anew.
pub const BINDINGS_PER_FUNCTION_MAX: usize = 32;

/// Sessions that one tenant may have open on a device. Each is a place in a table; what bounds the
/// bytes behind them is [`atoll_core::memory::limits::SESSIONS_SHARE`] and the tenant's quota.
pub const SESSIONS_PER_TENANT_MAX: usize = 4096;

/// How long a session is kept without a step, unless whoever opens it says otherwise: a person who
/// reads an answer before asking on.
pub const SESSION_IDLE_DEFAULT: Duration = Duration::from_secs(60);

/// Functions that one chain may call. Each has memory of its own for as long as the chain runs.
pub const CHAIN_STAGES_MAX: usize = 64;

/// By how much the constants of all functions may exceed the device's memory, unless the
/// configuration says otherwise.
pub const MEMORY_OVERCOMMIT_DEFAULT: f64 = 4.0;

/// Records of what happened that are kept, 4 MiB of them: some seconds of a busy device, and as
/// much as a reader that asks twenty times a second may miss.
pub const TRACE_RECORDS_MAX: usize = 1 << 16;

/// Records that are given out at a time: copying them takes the engine's thread some tens of
/// microseconds.
pub const TRACE_BATCH_MAX: usize = 4096;

/// Chunks that are taken from each compute unit at a time, likewise.
pub const TRACE_CHUNKS_MAX: u64 = 1024;

/// Launches of late to which chunks are held: more than run between two questions of a reader.
pub const TRACE_LAUNCHES_MAX: usize = 1 << 14;

/// Functions that are no longer loaded and whose names are kept for records of them.
pub const TRACE_FUNCTIONS_GONE_MAX: usize = 256;

/// How long the engine's thread looks for the next completion before it sleeps, where a core is
/// left for that: what being woken costs a short kernel, several times over.
pub const SPIN_NS: u64 = 20_000;

/// Where no core is left it looks only behind a launch as short as this, and for as long: the next
/// one would have ended before the thread was asleep and awake again.
pub const SHORT_SPIN_NS: u64 = 3_000;

/// What branches of an invocation have to gain beside each other before they run so, unless the
/// configuration says otherwise: more than it costs to begin and to join two lines. Both are a
/// completion that the engine has to hear of before the next launch, and a compute unit that has to
/// be woken. Measured by `atoll bench branches`.
pub const BRANCH_GAIN_MIN: Duration = Duration::from_micros(100);

/// Invocations of a set of shapes that run in line before it is decided which parts run in two: the
/// first ones find cold caches.
pub const BRANCH_RUNS_MEASURED: u32 = 4;

/// How long a shutdown waits for launches in flight after it has cancelled everything. A kernel
/// that takes longer is stuck.
pub const SHUTDOWN_CANCEL_GRACE: Duration = Duration::from_secs(2);
