//! What an engine and its functions are told when they are made.

use crate::cores::CoreShare;
use crate::limits;
use crate::padding::PaddingService;
use atoll_core::LaneId;
use atoll_core::memory::MemoryQuotas;
use atoll_core::residency::RESIDENCY_POLICY_DEFAULT;
use atoll_core::{Class, DeviceId, Tenant};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Which of a daemon's devices the engine drives: its invocations and functions get ids that
    /// begin at [`DeviceId::first_id`].
    pub device: DeviceId,
    /// The CPUs of the engine's thread. `None` for an engine that is the only one of its process:
    /// it takes what its own device leaves.
    pub cores: Option<CoreShare>,
    /// Name of the scheduling policy, one of [`atoll_core::POLICIES`].
    pub policy: String,
    /// Invocations of one function that may wait, of each class, where its own options do not say.
    pub queue_capacity: usize,
    /// Use only so much of the device's memory.
    pub memory_limit_bytes: Option<u64>,
    /// The constants of all functions may take so many times the device's memory; those that are
    /// not used for longest, or at least cost, wait outside. At 1 everything fits.
    pub memory_overcommit: f64,
    /// What tenants may have of the device's memory. Their constants may exceed it as those of all
    /// may exceed the device's.
    pub memory_quotas: MemoryQuotas,
    /// Who has to go when the device is full: a name from
    /// [`atoll_core::residency::RESIDENCY_POLICIES`].
    pub residency_policy: String,
    /// Launches put into one device queue, if the device takes that many.
    pub device_queue_capacity: u32,
    /// How long best-effort work may get nowhere beside real-time work before it is given a short
    /// time of its own. None unless told otherwise: real-time latency is what the engine promises
    /// first, and such a time is the one thing that breaks it on purpose.
    pub best_effort_wait_max: Option<Duration>,
    /// How long [`crate::Engine::shutdown`] lets admitted invocations go on before it cancels them.
    pub shutdown_grace: Duration,
    /// Makes what padding needs, for policies that pad. Without it real-time launches run alone.
    pub padding: Option<Arc<dyn PaddingService>>,
    /// Independent branches of a function run beside each other where that is quicker by so much or
    /// more; never if `None`.
    pub branch_gain_min: Option<Duration>,
    /// Evict running tasks at random points and let them continue, by this seed. For tests: every
    /// answer must stay the same.
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
            residency_policy: RESIDENCY_POLICY_DEFAULT.into(),
            device_queue_capacity: atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT,
            best_effort_wait_max: None,
            shutdown_grace: Duration::from_secs(5),
            padding: None,
            branch_gain_min: Some(limits::BRANCH_GAIN_MIN),
            evict_at_random: None,
        }
    }
}

/// What a function is called: whose it is, and its name among theirs. Shown as `NAME` where it is
/// the daemon's own, as `TENANT:NAME` otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionKey {
    /// Who owns it: whose memory its invocations take, and who is billed.
    pub tenant: Tenant,
    /// Its name.
    pub name: String,
}

impl FunctionKey {
    /// A function of the daemon's own.
    pub fn local(name: impl Into<String>) -> FunctionKey {
        FunctionKey { tenant: Tenant::default(), name: name.into() }
    }
}

impl fmt::Display for FunctionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant.is_local() { f.write_str(&self.name) } else { write!(f, "{}:{}", self.tenant, self.name) }
    }
}

/// How a function is to be served.
#[derive(Clone, Debug)]
pub struct FunctionOptions {
    /// What it is called; unique in an engine.
    pub key: FunctionKey,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Invocations of each class that may wait; the engine's setting where `None`. At least 1.
    pub queue_capacity: Option<usize>,
    /// The lane in which its invocations run, those that begin with it. Once that is closed, they
    /// run in the default lane.
    pub lane: LaneId,
}

/// What became of a function that was loaded.
#[derive(Clone, Debug)]
pub struct FunctionInfo {
    /// What it is called.
    pub key: FunctionKey,
    /// The target chosen for the device.
    pub target: String,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Invocations of each class that may wait.
    pub queue_capacity: usize,
    /// Size of its constants in bytes.
    pub weights_bytes: u64,
    /// Whether the constants were there already, for another function.
    pub weights_shared: bool,
    /// Whether they are on the device; otherwise the first invocation brings them.
    pub weights_resident: bool,
    /// Blocks of each kernel that a compute unit holds at once; `None` where it runs one at a time.
    pub occupancy: Vec<Option<u32>>,
}
