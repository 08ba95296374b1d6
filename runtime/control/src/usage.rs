//! What is loaded and who used how much, for people who run a daemon. Names end in their units.

use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who used how much since the daemon started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// When the daemon started to count, in seconds since 1970.
    pub started_at_s: u64,
    /// How long ago that is.
    pub uptime_s: f64,
    /// The device, whose time is shared.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// How long they ran blocks, by their own count, divided by their number: what all bills
    /// together come to. Only for who may see everybody's.
    pub device_s: Option<f64>,
    /// By device, tenant, function and class.
    pub rows: Vec<UsageEntry>,
    /// Every device. What stands above of a device is said of the first one.
    #[serde(default)]
    pub devices: Vec<DeviceUsage>,
}

impl UsageReport {
    /// Fills in the list of devices where a daemon of before there were several left it out.
    #[must_use]
    pub fn complete(mut self) -> UsageReport {
        if self.devices.is_empty() {
            self.devices.push(DeviceUsage {
                device: self.device.clone(),
                compute_units: self.compute_units,
                device_s: self.device_s,
            });
        }
        self
    }
}

/// How long a device was busy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// As [`UsageReport::device_s`].
    pub device_s: Option<f64>,
}

/// What one function used in one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageEntry {
    /// The device that was used.
    #[serde(default)]
    pub device: String,
    /// Who is billed.
    pub tenant: Tenant,
    /// The function; `None` for all of the tenant's that are no longer loaded.
    pub function: Option<String>,
    /// The class of the invocations; constants and idle memory count in the function's own.
    pub class: Class,
    /// Time on the device × the share of its compute units.
    pub device_s: f64,
    /// Launches that ended on the device, repeated ones included.
    pub launches: u64,
    /// Those that left early for others.
    pub evicted_launches: u64,
    /// Those that were ended because nobody wanted them any more.
    pub aborted_launches: u64,
    /// Device memory by what it is for: `constants`, `invocations`, `idle`.
    pub memory: BTreeMap<String, MemoryEntry>,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Invocations that are over, by how they ended.
    pub invocations: BTreeMap<String, u64>,
    /// Times invocations were told to leave the device for others.
    pub preemptions: u64,
    /// Times invocations were run again because the device under them was lost.
    pub retries: u64,
    /// Times constants had to be brought to the device.
    pub cold_starts: u64,
    /// Of these, times when some of them were on disk only; the others were in host memory.
    #[serde(default)]
    pub disk_cold_starts: u64,
    /// Times constants were taken off the device for others.
    pub reclaims: u64,
}

/// Memory of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryEntry {
    /// Held now.
    pub bytes: u64,
    /// Held over time: the sum of bytes × seconds.
    pub byte_s: f64,
}

/// What is loaded, and what it does now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// The device.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// Device memory that may be used.
    pub memory_bytes: u64,
    /// Device memory in use, by whomever.
    pub memory_used_bytes: u64,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
    /// By tenant and name.
    pub functions: Vec<ProcessEntry>,
    /// The processes that run launches, in the order in which their tenants came; none where the
    /// device runs in the daemon itself.
    pub executors: Vec<ExecutorEntry>,
    /// Every device. What stands above of a device is said of the first one.
    #[serde(default)]
    pub devices: Vec<DeviceEntry>,
}

impl ProcessReport {
    /// Fills in the list of devices where a daemon of before there were several left it out.
    #[must_use]
    pub fn complete(mut self) -> ProcessReport {
        if self.devices.is_empty() {
            self.devices.push(DeviceEntry {
                device: self.device.clone(),
                compute_units: self.compute_units,
                memory_bytes: self.memory_bytes,
                memory_used_bytes: self.memory_used_bytes,
                unready: false,
                lost: self.lost.clone(),
            });
        }
        self
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEntry {
    /// Its name.
    pub device: String,
    /// Its compute units.
    pub compute_units: u32,
    /// Device memory that may be used.
    pub memory_bytes: u64,
    /// Device memory in use, by whomever.
    pub memory_used_bytes: u64,
    /// Whether all of it is being replaced, so that invocations wait.
    pub unready: bool,
    /// Why it is lost, if it is.
    pub lost: Option<String>,
}

/// The process that runs a tenant's launches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorEntry {
    /// The device whose launches it runs.
    #[serde(default)]
    pub device: String,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its number; `None` while there is none.
    pub pid: Option<u32>,
    /// How often one was lost.
    pub restarts: u64,
    /// Why there is none.
    pub cause: Option<String>,
    /// What keeps code in it that its machine does not offer.
    pub jail_lacks: Vec<String>,
}

/// A function that is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEntry {
    /// The device that it is on.
    #[serde(default)]
    pub device: String,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its name.
    pub function: String,
    /// The class of invocations that do not name one.
    pub class: Class,
    /// Where its constants are.
    pub residency: Residency,
    /// What its constants take on the device when all are there.
    pub constant_bytes: u64,
    /// What of them is there now.
    pub constant_device_bytes: u64,
    /// How much of them is in host memory, on the device as well or not; the rest is on disk only.
    #[serde(default)]
    pub constant_host_bytes: u64,
    /// Memory of its invocations, of past ones that is kept for the next included.
    pub invocation_bytes: u64,
    /// Invocations that run.
    pub running: u64,
    /// Invocations that wait.
    pub waiting: u64,
}

/// Where constants are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// On the device.
    Device,
    /// On their way to it.
    Loading,
    /// Not all of them are on the device.
    Host,
}
