//! The configuration of executors.

use super::cgroup::ControlGroups;
use super::supervisor::TimeLimits;
use atoll_device::DeviceError;
use atoll_device::process::{DevicePlan, Plan};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of an answer that takes milliseconds on a machine that is not overloaded.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How to start an executor, and its time limits.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The device that it runs.
    pub device: DevicePlan,
    /// The program, which calls [`super::serve`] with its standard input.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its environment, in addition to the library path.
    pub environment: Vec<(OsString, OsString)>,
    /// How long it may show no sign of life while it has work.
    pub hang_after: Duration,
    /// How long it may take to start, to map constants, and for a transfer.
    pub answer_within: Duration,
    /// How long it may take to load a module.
    pub load_within: Duration,
    /// Increase of its nice value, as for nice(2).
    pub nice: i32,
    /// The domain whose launches it runs; empty for a device without domains.
    pub domain: String,
    /// Memory of a device with memory of its own that is reserved for tenants. Without it, their
    /// memory is not kept apart.
    pub tenant_memory: Option<TenantMemory>,
    /// The control groups among which its group is created. No group is created if this is `None`,
    /// or if the device's memory belongs to the executor, because the memory that GPU drivers need
    /// is not known in advance.
    pub groups: Option<Arc<ControlGroups>>,
}

/// Memory that is reserved for tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantMemory {
    /// This many bytes.
    Bytes(u64),
    /// This percentage of the device's memory.
    Percent(u32),
}

impl TenantMemory {
    /// Bytes of a device's memory.
    pub(super) fn of(self, memory_bytes: u64) -> u64 {
        match self {
            TenantMemory::Bytes(bytes) => bytes,
            TenantMemory::Percent(percent) => memory_bytes.saturating_mul(percent.into()) / 100,
        }
    }
}

impl ExecutorConfig {
    /// An executor of the running program, `atoll executor`.
    ///
    /// # Errors
    /// If the configuration of the device is invalid.
    pub fn new(device: impl Plan) -> Result<ExecutorConfig, DeviceError> {
        let device = device.plan()?;
        Ok(ExecutorConfig {
            environment: device.environment.clone(),
            load_within: device.load_within.unwrap_or(ANSWER_WITHIN),
            device,
            program: "/proc/self/exe".into(),
            arguments: vec!["executor".into()],
            hang_after: Duration::from_secs(3),
            answer_within: ANSWER_WITHIN,
            nice: 0,
            domain: String::new(),
            tenant_memory: None,
            groups: None,
        })
    }

    pub(super) fn time_limits(&self) -> TimeLimits {
        let DevicePlan { time_limit, link, .. } = &self.device;
        // A launch may have to wait for launches of every more urgent queue, each of which may use
        // its whole time limit.
        let launch_within = time_limit.saturating_mul(link.own_queues()).saturating_add(self.hang_after);
        TimeLimits {
            hang_after: self.hang_after,
            answer_within: self.answer_within,
            load_within: self.load_within,
            launch_within,
        }
    }
}
