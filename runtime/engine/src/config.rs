//! Configuration of an engine and of functions.

use crate::cores::CoreShare;
use crate::limits;
use crate::padding::PaddingService;
use crate::suspension::SuspensionConfig;
use atoll_core::LaneId;
use atoll_core::memory::MemoryQuotas;
use atoll_core::residency::RESIDENCY_POLICY_DEFAULT;
use atoll_core::{Class, DeviceId, Tenant};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The device that the engine drives, of the daemon's devices. Its invocations and functions
    /// get ids from [`DeviceId::first_id`] on.
    pub device: DeviceId,
    /// The CPUs of the engine's thread. `None` for the only engine of a process, which uses the
    /// CPUs that its device leaves.
    pub cores: Option<CoreShare>,
    /// Name of the scheduling policy, one of [`atoll_core::POLICIES`].
    pub policy: String,
    /// Invocations of one function that may wait, per class, unless the function's options say
    /// otherwise.
    pub queue_capacity: usize,
    /// Use only this many bytes of device memory.
    pub memory_limit_bytes: Option<u64>,
    /// Overcommit ratio: total constant bytes of all functions may be up to this multiple of device
    /// memory. The residency policy decides which stay. At 1 all constants fit.
    pub memory_overcommit: f64,
    /// Quotas of device memory by tenant. The overcommit ratio applies to the constants of a tenant
    /// and its quota as well.
    pub memory_quotas: MemoryQuotas,
    /// Suspension of CUDA sessions to host memory.
    pub suspension: SuspensionConfig,
    /// Name of the residency policy, one of [`atoll_core::residency::RESIDENCY_POLICIES`], which
    /// chooses the constants to reclaim when the device is full.
    pub residency_policy: String,
    /// Launches that a device queue holds at most; by default as many as the device says.
    pub device_queue_capacity: u32,
    /// How long best-effort work may make no progress beside real-time work before it gets a short
    /// slice of the device. `None` by default: real-time latency comes first, and a slice is the
    /// one thing that delays it deliberately.
    pub best_effort_wait_max: Option<Duration>,
    /// How long [`crate::Engine::shutdown`] lets admitted invocations run before it cancels them.
    pub shutdown_grace: Duration,
    /// Compiles padding modules, for policies that pad. Without it real-time launches run unpadded.
    pub padding: Option<Arc<dyn PaddingService>>,
    /// Run independent branches of a function concurrently if that is faster by at least this much;
    /// never if `None`.
    pub branch_gain_min: Option<Duration>,
    /// Seed for evicting running tasks at random points, for tests: every result must stay the
    /// same.
    pub evict_at_random: Option<u64>,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            device: DeviceId::default(),
            cores: None,
            policy: atoll_core::POLICY_DEFAULT.into(),
            queue_capacity: limits::FUNCTION_QUEUE_CAPACITY_DEFAULT,
            memory_limit_bytes: None,
            memory_overcommit: limits::MEMORY_OVERCOMMIT_DEFAULT,
            memory_quotas: MemoryQuotas::default(),
            suspension: SuspensionConfig::default(),
            residency_policy: RESIDENCY_POLICY_DEFAULT.into(),
            device_queue_capacity: u32::MAX,
            best_effort_wait_max: None,
            shutdown_grace: Duration::from_secs(5),
            padding: None,
            branch_gain_min: Some(limits::BRANCH_GAIN_MIN),
            evict_at_random: None,
        }
    }
}

/// The tenant and name of a function. Displayed as `NAME` for functions of the daemon's own models,
/// as `TENANT:NAME` otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionKey {
    /// The owner: its quota covers the memory of invocations, and it is billed.
    pub tenant: Tenant,
    /// The name, unique per tenant.
    pub name: String,
}

impl FunctionKey {
    /// A function of the daemon's own models.
    pub fn local(name: impl Into<String>) -> FunctionKey {
        FunctionKey { tenant: Tenant::default(), name: name.into() }
    }
}

impl fmt::Display for FunctionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant.is_local() { f.write_str(&self.name) } else { write!(f, "{}:{}", self.tenant, self.name) }
    }
}

/// Options of a function.
#[derive(Clone, Debug)]
pub struct FunctionOptions {
    /// Its tenant and name; unique in an engine.
    pub key: FunctionKey,
    /// The default class of its invocations.
    pub class: Class,
    /// Invocations of each class that may wait, at least 1; the engine's default if `None`.
    pub queue_capacity: Option<usize>,
    /// The lane of its invocations and of the chains that begin with it. If the lane is closed,
    /// they run in the default lane.
    pub lane: LaneId,
    /// How its requests are batched; `None` if each runs alone.
    pub batching: Option<BatchingOptions>,
}

/// Facts about a function that was loaded.
#[derive(Clone, Debug)]
pub struct FunctionInfo {
    /// Its tenant and name.
    pub key: FunctionKey,
    /// The target chosen for the device.
    pub target: String,
    /// The default class of its invocations.
    pub class: Class,
    /// Invocations of each class that may wait.
    pub queue_capacity: usize,
    /// Size of its constants in bytes.
    pub weights_bytes: u64,
    /// Whether the constants were already on the device, for another function.
    pub weights_shared: bool,
    /// Whether they are on the device; otherwise the first invocation loads them.
    pub weights_resident: bool,
    /// Blocks of each kernel that fit on a compute unit; `None` if a compute unit runs one at a
    /// time.
    pub occupancy: Vec<Option<u32>>,
}

/// How the requests of a function are batched.
///
/// The rows of the function must be proven independent ([`atoll_kgraph::BatchAxis`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchingOptions {
    /// Largest number of rows of a batch, and of a single request.
    pub max_batch_size: NonZeroU32,
    /// Whether requests are batched. If not, `max_batch_size` only limits requests.
    pub gathers: bool,
    /// Preferred sizes of batches, in rows.
    pub preferred: Vec<u32>,
    /// How long a request waits for others while the function is idle. `None` derives the delay
    /// from measurements; see [`atoll_core::batching`].
    pub max_queue_delay: Option<Duration>,
    /// Whether real-time requests wait for others like best-effort ones. If not, they wait only as
    /// far as their deadlines allow.
    pub real_time: bool,
}

impl BatchingOptions {
    /// Batches of up to `max_batch_size` rows with a delay that is derived from measurements. Real-time
    /// requests wait only as far as their deadlines allow.
    pub fn up_to(max_batch_size: NonZeroU32) -> BatchingOptions {
        BatchingOptions {
            max_batch_size,
            gathers: true,
            preferred: Vec::new(),
            max_queue_delay: None,
            real_time: false,
        }
    }
}
