//! What an engine tells about itself.

use crate::accounts::UsageRow;
use crate::config::FunctionKey;
use crate::histogram::Histogram;
use atoll_core::memory::TenantBytes;
use atoll_core::{Class, LaneId, Tenant};
use atoll_device::{ComputeUnitUse, ExecutorStatistics};

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct EngineStatistics {
    /// How long the engine has run.
    pub uptime_ns: u64,
    /// Who used how much: by tenant, function and class. Rows of a function are there from when it
    /// is loaded until it is unloaded; then they become part of its tenant's.
    pub usage: Vec<UsageRow>,
    /// What tenants that have a quota of device memory use of it: those that are named in the
    /// configuration, and others that were active.
    pub tenants: Vec<TenantMemory>,
    /// Per loaded function, by name.
    pub functions: Vec<FunctionStatistics>,
    /// The device.
    pub device: DeviceStatistics,
    /// Per class: real-time, best-effort.
    pub classes: Vec<ClassStatistics>,
    /// What happened to the constants of all functions since the engine started.
    pub constants: ConstantStatistics,
    /// Invocations that wait for constants or memory now.
    pub cold_invocations: u64,
    /// The scheduling policy.
    pub policy: &'static str,
    /// Whether real-time invocations are served now.
    pub real_time_mode: bool,
    /// Times running tasks were told to leave the device.
    pub preemptions: u64,
    /// Real-time launches beside which best-effort blocks ran.
    pub padded_launches: u64,
    /// How many blocks.
    pub padding_blocks: u64,
    /// Parts of invocations whose branches ran beside each other.
    pub forks: u64,
    /// Times best-effort work was given the device although real-time work was there
    /// ([`crate::EngineConfig::best_effort_wait_max`]).
    pub best_effort_slices: u64,
    /// Launches handed to the device, repeated ones included.
    pub issued_launches: u64,
    /// Launches that left early.
    pub evicted_launches: u64,
    /// Times invocations were tried again because their executor was lost.
    pub retries: u64,
    /// Launches that were ended by force, because nobody wanted their invocation any more.
    pub aborted_launches: u64,
    /// Times blocks were stopped midway for more urgent ones, and had to begin again.
    pub reexecuted_blocks: u64,
    /// How long these had run, summed over the compute units.
    pub discarded_ns: u64,
    /// Modules on the device in which kernels of several functions share launches.
    pub padding_modules: u64,
    /// Kernels in them.
    pub padding_candidates: u64,
    /// Whether others are being made or loaded that will take their place.
    pub padding_pending: bool,
    /// From the submission of a real-time invocation to the start of its first block.
    pub rt_start_latency: Histogram,
    /// The same for those that found best-effort launches on the device and evicted them.
    pub preemption_latency: Histogram,
    /// From the submission of such an invocation until nothing that had to leave for it was left on
    /// the device.
    pub drain_latency: Histogram,
    /// Of that, from the raised epoch until a launch was off the device of which no block had
    /// begun.
    pub flag_latency: Histogram,
    /// The same of launches of which blocks were stopped midway.
    pub interrupt_latency: Histogram,
}

/// One function since it was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionStatistics {
    /// What it is called.
    pub key: FunctionKey,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Invocations that gave a result.
    pub success: u64,
    /// Invocations that were admitted and gave none.
    pub failure: u64,
    /// Invocations that were refused: bad input, full queue.
    pub rejected: u64,
    /// Invocations that wait now.
    pub in_queue: u64,
    /// Invocations that have been prepared and are not over.
    pub running: u64,
    /// Sum of [`crate::InvocationTiming::queue_ns`] of successful invocations.
    pub queue_ns: u64,
    /// Sum of [`crate::InvocationTiming::input_ns`].
    pub input_ns: u64,
    /// Sum of [`crate::InvocationTiming::compute_ns`].
    pub compute_ns: u64,
    /// Sum of [`crate::InvocationTiming::output_ns`].
    pub output_ns: u64,
    /// Times its invocations were told to leave the device.
    pub preemptions: u64,
    /// Launches of its invocations that left early.
    pub evicted_launches: u64,
    /// What it has in memory now.
    pub memory: FunctionMemory,
    /// What happened to its constants, which functions with equal ones share.
    pub constants: ConstantStatistics,
}

/// What a tenant uses of its quota of device memory: constants that several tenants use count in
/// full for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantMemory {
    /// Who.
    pub tenant: Tenant,
    /// What it may have.
    pub quota: TenantBytes,
    /// What it uses.
    pub used: TenantBytes,
    /// The most it ever used.
    pub most: TenantBytes,
}

/// What a function has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionMemory {
    /// Where its constants are.
    pub state: ConstantState,
    /// What they take on the device when all are there.
    pub constant_bytes: u64,
    /// What of them is there now.
    pub constant_device_bytes: u64,
    /// How much of its bundle's constants is in host memory, on the device as well or not. The
    /// system keeps what it has room for, and what is not there is read from disk when it is
    /// needed; 0 where it does not say.
    pub constant_host_bytes: u64,
    /// Memory of its invocations, of past ones that is kept for the next included.
    pub invocation_bytes: u64,
}

/// Where the constants of a function are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstantState {
    /// On the device.
    Device,
    /// On their way to it.
    Loading,
    /// Not all of them are on the device; they are read from the function's bundle when they are
    /// needed.
    #[default]
    Host,
}

/// How constants come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConstantStatistics {
    /// Invocations that did not find them on the device when they arrived.
    pub cold_starts: u64,
    /// Times they were brought to the device as a whole.
    pub loads: u64,
    /// Of these, times when something had to be read from disk.
    pub disk_loads: u64,
    /// Bytes written for that.
    pub loaded_bytes: u64,
    /// Times they had to make room for something else.
    pub evictions: u64,
    /// Their sizes at those times.
    pub evicted_bytes: u64,
}

/// The device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Its name.
    pub name: String,
    /// Bytes the engine may use.
    pub memory_total_bytes: u64,
    /// Bytes in use: constants, and the memory of invocations that run or ran last.
    pub memory_used_bytes: u64,
    /// The most that was ever in use.
    pub memory_used_bytes_max: u64,
    /// Compute units.
    pub compute_units: u32,
    /// What each of them did; nothing where the device does not count.
    pub units: Vec<ComputeUnitUse>,
    /// Launches in each device queue of the default lane now, the most urgent first.
    pub queue_depths: Vec<u64>,
    /// How many each takes.
    pub queue_capacity: u32,
    /// Its lanes, the default one first.
    pub lanes: Vec<LaneStatistics>,
    /// How long they ran blocks, summed over them, by their own count; `None` where the device does
    /// not count.
    pub busy_ns: Option<u64>,
    /// Part of that in constants.
    pub constant_bytes: u64,
    /// What the constants of all functions would take.
    pub constant_bytes_all: u64,
    /// The processes that run its launches, on a device that has some.
    pub executors: ExecutorStatistics,
    /// Whether all of it is being replaced, so that invocations wait.
    pub is_unready: bool,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatistics {
    /// Its name.
    pub lane: LaneId,
    /// The compute units whose blocks it gives out, by index.
    pub units: Vec<u32>,
    /// Invocations in it.
    pub invocations: u64,
    /// Launches in each of its device queues now, the most urgent first.
    pub queue_depths: Vec<u64>,
    /// Whether it is closing.
    pub is_closing: bool,
}

/// One class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Which.
    pub class: Class,
    /// Invocations that were admitted.
    pub admitted: u64,
    /// Invocations that are over.
    pub finished: u64,
    /// Invocations that wait for a device queue now.
    pub waiting: u64,
}
