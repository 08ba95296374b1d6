//! What a daemon does at the moment, for people who watch it. Names end in their units.

use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// What a daemon does. Counters begin with the daemon, those of functions with their loading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// The scheduling policy.
    pub policy: String,
    /// How long the daemon has run.
    pub uptime_s: f64,
    /// Why the device is lost, if it is.
    pub lost: Option<String>,
    /// What the device does for all tenants together. Only for who may see everybody's.
    pub whole: Option<WholeStatus>,
    /// By device, tenant and name.
    pub functions: Vec<FunctionStatus>,
    /// Every device. What stands above of a device is said of the first one.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
}

impl StatusReport {
    /// Fills in the list of devices where a daemon of before there were several left it out.
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

/// What a device does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
    /// As [`StatusReport::whole`].
    pub whole: Option<WholeStatus>,
}

/// What a device does for all tenants together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholeStatus {
    /// Whether real-time invocations are served now.
    pub real_time_mode: bool,
    /// Launches in each device queue now, the most urgent first.
    pub queue_depths: Vec<u64>,
    /// How many each takes.
    pub queue_capacity: u32,
    /// Real-time invocations that wait for a device queue now.
    pub real_time_waiting: u64,
    /// The same of best-effort ones.
    pub best_effort_waiting: u64,
    /// Times running tasks were told to leave.
    pub preemptions: u64,
    /// From the submission of a real-time invocation that preempts others to its first block.
    pub preemption_latency_us: LatencyStatus,
    /// Launches handed to the device.
    pub launches: u64,
    /// Those that left early.
    pub evicted_launches: u64,
    /// Those beside which best-effort blocks ran.
    pub padded_launches: u64,
    /// Device memory that may be used.
    pub memory_bytes: u64,
    /// Device memory in use.
    pub memory_used_bytes: u64,
    /// Each compute unit; none where the device does not count.
    pub units: Vec<UnitStatus>,
}

/// Durations since the daemon started, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// How many there were.
    pub count: u64,
    /// What half of them did not exceed.
    pub p50: f64,
    /// What 99 % of them did not exceed.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// What a compute unit did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnitStatus {
    /// How long it ran blocks.
    pub busy_s: f64,
    /// In how many chunks.
    pub chunks: u64,
}

/// What a function does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStatus {
    /// The device that it is on.
    #[serde(default)]
    pub device: String,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its name.
    pub function: String,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Invocations that run now.
    pub running: u64,
    /// Invocations that wait now.
    pub waiting: u64,
    /// Invocations that gave a result.
    pub success: u64,
    /// Invocations that were admitted and gave none.
    pub failure: u64,
    /// Invocations that were refused.
    pub rejected: u64,
    /// Times its invocations were told to leave for others.
    pub preemptions: u64,
}
