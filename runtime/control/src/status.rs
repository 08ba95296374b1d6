//! The current state of a daemon, for operators. Field names end in their units.

use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// The current state of a daemon. Counters of devices start with the daemon, those of functions
/// when they are loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Name of the first device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// The scheduling policy.
    pub policy: String,
    /// Time since the daemon started, in seconds.
    pub uptime_s: f64,
    /// The reason, if the device is lost.
    pub lost: Option<String>,
    /// State of the device over all tenants. Only for peers that see all tenants.
    pub whole: Option<WholeStatus>,
    /// The functions, by device, tenant and name.
    pub functions: Vec<FunctionStatus>,
    /// All devices. The fields above describe the first one, except for `policy`, `uptime_s` and
    /// `functions`.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
}

impl StatusReport {
    /// Fills in the list of devices, which older daemons do not send.
    #[must_use]
    pub fn complete(mut self) -> StatusReport {
        if self.devices.is_empty() {
            self.devices.push(DeviceStatus {
                device: self.device.clone(),
                compute_units: self.compute_units,
                lost: self.lost.clone(),
                whole: self.whole.clone(),
            });
        }
        self
    }
}

/// State of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// The reason, if it is lost.
    pub lost: Option<String>,
    /// As [`StatusReport::whole`].
    pub whole: Option<WholeStatus>,
}

/// State of a device over all tenants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholeStatus {
    /// Whether real-time invocations are being served now.
    pub real_time_mode: bool,
    /// Launches in each device queue, the most urgent queue first.
    pub queue_depths: Vec<u64>,
    /// Capacity of each device queue.
    pub queue_capacity: u32,
    /// Real-time invocations that wait for a device queue.
    pub real_time_waiting: u64,
    /// Best-effort invocations that wait for a device queue.
    pub best_effort_waiting: u64,
    /// Preemptions of running tasks.
    pub preemptions: u64,
    /// Time from the submission of a preempting real-time invocation to its first block.
    pub preemption_latency_us: LatencyStatus,
    /// Launches submitted to the device.
    pub launches: u64,
    /// Launches evicted before they completed.
    pub evicted_launches: u64,
    /// Launches with co-scheduled best-effort blocks.
    pub padded_launches: u64,
    /// Usable device memory.
    pub memory_bytes: u64,
    /// Device memory in use.
    pub memory_used_bytes: u64,
    /// The compute units; empty if the device does not measure them.
    pub units: Vec<UnitStatus>,
}

/// Distribution of durations since the daemon started, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Number of durations.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

/// Counters of a compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitStatus {
    /// Time during which it ran blocks, in seconds.
    pub busy_s: f64,
    /// Number of chunks of blocks that it ran.
    pub chunks: u64,
}

/// State of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStatus {
    /// Its device.
    #[serde(default)]
    pub device: String,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its name.
    pub function: String,
    /// The class of invocations that state no class.
    pub class: Class,
    /// Running invocations.
    pub running: u64,
    /// Queued invocations.
    pub waiting: u64,
    /// Invocations with a result.
    pub success: u64,
    /// Invocations that were admitted and failed.
    pub failure: u64,
    /// Invocations that were rejected.
    pub rejected: u64,
    /// Preemptions of its invocations.
    pub preemptions: u64,
}
