//! Statistics of an engine.

use crate::accounts::UsageRow;
use crate::config::FunctionKey;
use crate::histogram::Histogram;
use crate::request::InvocationTiming;
use crate::share::ShareStatistics;
use crate::suspension::SuspensionStatistics;
use atoll_core::memory::TenantBytes;
use atoll_core::{Class, LaneId, Tenant};
use atoll_device::{ComputeUnitUse, ExecutorStatistics};

/// A snapshot of all statistics.
#[derive(Clone, Debug, Default)]
pub struct EngineStatistics {
    /// Time since the engine started, in nanoseconds.
    pub uptime_ns: u64,
    /// Usage by tenant, function and class. The rows of a function exist while it is loaded; after
    /// that they are part of its tenant's total.
    pub usage: Vec<UsageRow>,
    /// Memory use of tenants with a quota: those named in the configuration, and others that were
    /// active.
    pub tenants: Vec<TenantMemory>,
    /// The shares of clients, by lane and client.
    pub shares: Vec<ShareStatistics>,
    /// Per loaded function, by name.
    pub functions: Vec<FunctionStatistics>,
    /// The device.
    pub device: DeviceStatistics,
    /// CUDA sessions that were suspended to host memory.
    pub suspension: SuspensionStatistics,
    /// Per class: real-time, best-effort.
    pub classes: Vec<ClassStatistics>,
    /// Loads and reclaims of the constants of all functions since the engine started.
    pub constants: ConstantStatistics,
    /// Invocations that are waiting for constants or memory.
    pub cold_invocations: u64,
    /// The scheduling policy.
    pub policy: &'static str,
    /// Whether real-time invocations are being served.
    pub real_time_mode: bool,
    /// Times a running task was evicted in favour of another.
    pub preemptions: u64,
    /// Real-time launches with co-scheduled best-effort blocks.
    pub padded_launches: u64,
    /// Co-scheduled blocks.
    pub padding_blocks: u64,
    /// Forks of invocations whose branches ran concurrently.
    pub forks: u64,
    /// Times best-effort work got the device while real-time work was present
    /// ([`crate::EngineConfig::best_effort_wait_max`]).
    pub best_effort_slices: u64,
    /// Launches submitted to the device, repeated ones included.
    pub issued_launches: u64,
    /// Launches that exited early.
    pub evicted_launches: u64,
    /// Times an invocation was retried because its executor was lost.
    pub retries: u64,
    /// Launches that were ended by force after their invocation was over.
    pub aborted_launches: u64,
    /// Times a running block was stopped in favour of more urgent ones, and had to start again.
    pub reexecuted_blocks: u64,
    /// Time that those blocks had run, summed over the compute units, in nanoseconds.
    pub discarded_ns: u64,
    /// Padding modules on the device, in which kernels of several functions can share launches.
    pub padding_modules: u64,
    /// Candidate kernels in them.
    pub padding_candidates: u64,
    /// Whether new padding modules are being compiled or loaded.
    pub padding_pending: bool,
    /// From the submission of a real-time invocation to the start of its first block.
    pub rt_start_latency: Histogram,
    /// Like `rt_start_latency`, only for invocations that evicted best-effort launches.
    pub preemption_latency: Histogram,
    /// From the submission of an invocation that evicted best-effort launches until all of these
    /// were off the device.
    pub drain_latency: Histogram,
    /// From raising the epoch until an evicted launch was off the device, for launches without
    /// started blocks.
    pub flag_latency: Histogram,
    /// The same, for launches whose running blocks were interrupted.
    pub interrupt_latency: Histogram,
}

/// Statistics of one function since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionStatistics {
    /// Its tenant and name.
    pub key: FunctionKey,
    /// The default class of its invocations.
    pub class: Class,
    /// Invocations that succeeded.
    pub success: u64,
    /// Invocations that were admitted and failed.
    pub failure: u64,
    /// Invocations that were refused: invalid input, full queue.
    pub rejected: u64,
    /// Invocations that are waiting.
    pub in_queue: u64,
    /// Invocations that are prepared and not finished.
    pub running: u64,
    /// Sum of [`crate::InvocationTiming::queue_ns`] of successful invocations.
    pub queue_ns: u64,
    /// Sum of [`crate::InvocationTiming::input_ns`].
    pub input_ns: u64,
    /// Sum of [`crate::InvocationTiming::compute_ns`].
    pub compute_ns: u64,
    /// Sum of [`crate::InvocationTiming::output_ns`].
    pub output_ns: u64,
    /// Times its invocations were evicted in favour of others.
    pub preemptions: u64,
    /// Launches of its invocations that exited early.
    pub evicted_launches: u64,
    /// Finished runs by their number of rows, in ascending order. Empty for a function without
    /// [`crate::BatchingOptions`].
    pub batches: Vec<BatchStatistics>,
    /// Sum of the time that its requests waited for others before their batch was closed. Included
    /// in `queue_ns`.
    pub gather_ns: u64,
    /// Its memory.
    pub memory: FunctionMemory,
    /// Loads and reclaims of its constants, which functions with equal constants share.
    pub constants: ConstantStatistics,
}

/// Finished runs of a function with the same number of rows, and their total times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStatistics {
    /// Rows of a run.
    pub rows: u64,
    /// Number of runs.
    pub count: u64,
    /// Total time of writing inputs, in nanoseconds.
    pub input_ns: u64,
    /// Total time of computing, in nanoseconds.
    pub compute_ns: u64,
    /// Total time of reading outputs, in nanoseconds.
    pub output_ns: u64,
}

impl FunctionStatistics {
    /// Counts a finished run.
    pub(crate) fn note_run(&mut self, rows: u64, timing: InvocationTiming) {
        let at = match self.batches.binary_search_by_key(&rows, |batch| batch.rows) {
            Ok(at) => at,
            Err(at) => {
                self.batches.insert(at, BatchStatistics { rows, ..BatchStatistics::default() });
                at
            }
        };
        let batch = &mut self.batches[at];
        batch.count += 1;
        batch.input_ns += timing.input_ns;
        batch.compute_ns += timing.compute_ns;
        batch.output_ns += timing.output_ns;
    }

    /// Number of successful runs. Less than the number of requests if requests were batched.
    pub fn executions(&self) -> u64 {
        if self.batches.is_empty() { self.success } else { self.batches.iter().map(|batch| batch.count).sum() }
    }

    /// Number of rows of all successful requests. For a function without [`crate::BatchingOptions`]
    /// each request counts as one row.
    pub fn rows(&self) -> u64 {
        let rows = |batch: &BatchStatistics| batch.rows * batch.count;
        if self.batches.is_empty() { self.success } else { self.batches.iter().map(rows).sum() }
    }
}

/// A tenant's use of its quota of device memory. Constants that several tenants use count in full
/// for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantMemory {
    /// The tenant.
    pub tenant: Tenant,
    /// Its quota.
    pub quota: TenantBytes,
    /// Its current use.
    pub used: TenantBytes,
    /// Its peak use.
    pub most: TenantBytes,
}

/// Memory of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionMemory {
    /// Where its constants are.
    pub state: ConstantState,
    /// Bytes of its constants.
    pub constant_bytes: u64,
    /// Bytes of its constants that are on the device.
    pub constant_device_bytes: u64,
    /// Bytes of its bundle's constants that are in host memory, whether on the device or not. The
    /// system drops pages when memory is short, and they are read from disk again when needed. 0 if
    /// the system does not report it.
    pub constant_host_bytes: u64,
    /// Bytes of its invocations, including memory kept from past ones.
    pub invocation_bytes: u64,
}

/// Where the constants of a function are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstantState {
    /// On the device.
    Device,
    /// Being loaded.
    Loading,
    /// Not all of them are on the device; they are loaded from the function's bundle when needed.
    #[default]
    Host,
}

/// Loads and reclaims of constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConstantStatistics {
    /// Invocations that arrived while the constants were not on the device.
    pub cold_starts: u64,
    /// Times they were loaded onto the device.
    pub loads: u64,
    /// Loads for which something had to be read from disk.
    pub disk_loads: u64,
    /// Bytes written by loads.
    pub loaded_bytes: u64,
    /// Times they were reclaimed.
    pub evictions: u64,
    /// Bytes reclaimed.
    pub evicted_bytes: u64,
}

/// The device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Its name.
    pub name: String,
    /// Bytes of memory that the engine may use.
    pub memory_total_bytes: u64,
    /// Bytes in use: constants, and the memory of running and past invocations.
    pub memory_used_bytes: u64,
    /// Peak use in bytes.
    pub memory_used_bytes_max: u64,
    /// Number of compute units.
    pub compute_units: u32,
    /// Activity of each compute unit; empty if the device does not count.
    pub units: Vec<ComputeUnitUse>,
    /// Launches in each device queue of the default lane, the most urgent first.
    pub queue_depths: Vec<u64>,
    /// Capacity of each device queue.
    pub queue_capacity: u32,
    /// Its lanes, the default one first.
    pub lanes: Vec<LaneStatistics>,
    /// Time that the compute units ran blocks, as the device counts it, summed over the units, in
    /// nanoseconds; `None` if the device does not count it.
    pub busy_ns: Option<u64>,
    /// Bytes of memory in use for constants.
    pub constant_bytes: u64,
    /// Bytes that the constants of all functions would take.
    pub constant_bytes_all: u64,
    /// The executor processes, if the device has any.
    pub executors: ExecutorStatistics,
    /// Whether the executor of the whole device is being replaced, so that invocations wait.
    pub is_unready: bool,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatistics {
    /// Its id.
    pub lane: LaneId,
    /// Indices of the compute units that run its blocks.
    pub units: Vec<u32>,
    /// Invocations in it.
    pub invocations: u64,
    /// Launches in each of its device queues, the most urgent first.
    pub queue_depths: Vec<u64>,
    /// Whether it is closing.
    pub is_closing: bool,
}

/// One service class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// The class.
    pub class: Class,
    /// Invocations that were admitted.
    pub admitted: u64,
    /// Invocations that finished.
    pub finished: u64,
    /// Invocations that are waiting for a device queue.
    pub waiting: u64,
}
