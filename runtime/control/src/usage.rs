//! Loaded functions and usage, for operators of a daemon. Field names end in their units.

use crate::instances::ShareEntry;
use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Usage since the daemon started, by device, tenant, function and class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageReport {
    /// When the daemon started, in seconds since 1970.
    pub started_at_s: u64,
    /// Time since then, in seconds.
    pub uptime_s: f64,
    /// Name of the first device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// Time during which they ran blocks, as measured by the units, divided by their number. It is
    /// the total of all rows of this device. Only for peers that see all tenants.
    pub device_s: Option<f64>,
    /// Usage by device, tenant, function and class.
    pub rows: Vec<UsageEntry>,
    /// All devices. The fields above describe the first one.
    #[serde(default)]
    pub devices: Vec<DeviceUsage>,
    /// Resources that the executors of tenants used, as the operating system accounts for them, by
    /// device and tenant.
    #[serde(default)]
    pub executors: Vec<ExecutorUsage>,
    /// The price of CPU stages in units of account per second of CPU time; `None` if they have no
    /// price.
    #[serde(default)]
    pub cpu_price_per_s: Option<f64>,
    /// Quotas of tenants, and how much of them is used.
    #[serde(default)]
    pub quotas: Vec<QuotaEntry>,
}

/// Resources that the executors of a tenant used on a device since the daemon started, as the
/// operating system accounts for them. Device time, in contrast, is measured by the executors. CPU
/// time is what is billed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutorUsage {
    /// The device, `cpu` for CPU stages, or `ring` for the daemon's threads of rings.
    pub device: String,
    /// The tenant.
    pub tenant: Tenant,
    /// CPU time in seconds.
    pub cpu_s: f64,
    /// The price of the CPU time of CPU stages and rings, in units of account. `None` for executors,
    /// whose price is in the rows of functions, and if CPU time has no price.
    #[serde(default)]
    pub price: Option<f64>,
    /// Memory of its control groups; `None` if the daemon could not create control groups.
    pub memory: Option<ExecutorMemory>,
}

/// Memory and throttling of executors in control groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutorMemory {
    /// The limit in bytes, of device memory and memory of the process together; `None` if there is
    /// no limit.
    pub limit_bytes: Option<u64>,
    /// Bytes in use.
    pub bytes: u64,
    /// Peak of the bytes in use.
    pub peak_bytes: u64,
    /// Executors that were killed at the limit.
    pub kills: u64,
    /// Time in which they waited because of their limit of CPU time, in seconds.
    pub throttled_s: f64,
}

/// A quota of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaEntry {
    /// The tenant.
    pub tenant: Tenant,
    /// The key in the daemon's configuration, as in `object_bytes`.
    pub quota: String,
    /// The used amount. It may exceed the limit if the limit was lowered.
    pub used: u64,
    /// The limit; `None` if there is no limit.
    pub limit: Option<u64>,
}

impl UsageReport {
    /// Fills in the list of devices and the billed time, which older daemons do not send.
    #[must_use]
    pub fn complete(mut self) -> UsageReport {
        if self.devices.is_empty() {
            self.devices.push(DeviceUsage {
                device: self.device.clone(),
                compute_units: self.compute_units,
                device_s: self.device_s,
                price_per_s: None,
            });
        }
        for row in self.rows.iter_mut().filter(|row| row.billed_by == BilledBy::Report) {
            row.billed_s = row.device_s;
        }
        self
    }
}

/// Busy time of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceUsage {
    /// Name of the device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// As [`UsageReport::device_s`].
    pub device_s: Option<f64>,
    /// Its price in units of account per second; `None` if no device has a price.
    #[serde(default)]
    pub price_per_s: Option<f64>,
}

/// Usage of one function in one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageEntry {
    /// The device.
    #[serde(default)]
    pub device: String,
    /// The tenant.
    pub tenant: Tenant,
    /// The function; `None` for the sum of the tenant's functions that are no longer loaded.
    pub function: Option<String>,
    /// The class of the invocations. Constants and idle memory count in the function's own class.
    pub class: Class,
    /// Time on the device × share of its compute units, as the device or the tenant's executor
    /// reports it.
    pub device_s: f64,
    /// Billed time: CPU time divided by the number of compute units, or `device_s`.
    #[serde(default)]
    pub billed_s: f64,
    /// Which of the two is billed.
    #[serde(default)]
    pub billed_by: BilledBy,
    /// The price of the billed time, in units of account; `None` if no device has a price.
    #[serde(default)]
    pub price: Option<f64>,
    /// Launches that ended on the device, including repeated ones.
    pub launches: u64,
    /// Launches evicted before they completed.
    pub evicted_launches: u64,
    /// Launches aborted because their invocation was cancelled.
    pub aborted_launches: u64,
    /// Device memory by kind: `constants`, `invocations`, `idle`.
    pub memory: BTreeMap<String, MemoryEntry>,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Finished invocations by outcome.
    pub invocations: BTreeMap<String, u64>,
    /// Preemptions of invocations.
    pub preemptions: u64,
    /// Invocations run again because their device was lost.
    pub retries: u64,
    /// Loads of constants for an invocation.
    pub cold_starts: u64,
    /// Cold starts for which some constants were on disk only; the others came from host memory.
    #[serde(default)]
    pub disk_cold_starts: u64,
    /// Evictions of constants to make room for others.
    pub reclaims: u64,
}

/// The count that is billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BilledBy {
    /// The report of the device, or of the tenant's executor.
    #[default]
    Report,
    /// The kernel's count of the CPU time of the tenant's executors, divided among functions in
    /// proportion to the reports.
    Kernel,
}

/// Memory of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryEntry {
    /// Bytes held now.
    pub bytes: u64,
    /// Bytes held, integrated over time: bytes × seconds.
    pub byte_s: f64,
}

/// Loaded functions and their current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Name of the first device.
    pub device: String,
    /// Number of its compute units.
    pub compute_units: u32,
    /// Usable device memory.
    pub memory_bytes: u64,
    /// Device memory in use by all tenants.
    pub memory_used_bytes: u64,
    /// The reason, if the device is lost.
    pub lost: Option<String>,
    /// The functions, by device, tenant and name.
    pub functions: Vec<ProcessEntry>,
    /// Executor processes, ordered by the arrival of their tenants; empty if the device runs inside
    /// the daemon.
    pub executors: Vec<ExecutorEntry>,
    /// Instances and tenants with shares, by device.
    #[serde(default)]
    pub shares: Vec<ShareEntry>,
    /// All devices. The fields above describe the first one.
    #[serde(default)]
    pub devices: Vec<DeviceEntry>,
}

impl ProcessReport {
    /// Fills in the list of devices, which older daemons do not send.
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
    /// Number of its compute units.
    pub compute_units: u32,
    /// Usable device memory.
    pub memory_bytes: u64,
    /// Device memory in use by all tenants.
    pub memory_used_bytes: u64,
    /// Whether the device is being replaced; invocations wait until then.
    pub unready: bool,
    /// The reason, if it is lost.
    pub lost: Option<String>,
}

/// The executor process of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecutorEntry {
    /// The device whose launches it runs.
    #[serde(default)]
    pub device: String,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its process id; `None` while it is not running.
    pub pid: Option<u32>,
    /// How often it was restarted after a loss.
    pub restarts: u64,
    /// CPU time that the tenant's executors used on this device since the daemon started, in
    /// seconds. The operating system accounts for it, while device time is measured by the
    /// executors.
    #[serde(default)]
    pub cpu_s: f64,
    /// The limit of its memory by a control group, in bytes; `None` if it has none.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// Why it is not running.
    pub cause: Option<String>,
    /// Parts of the jail that this machine does not support.
    pub jail_lacks: Vec<String>,
}

/// A loaded function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEntry {
    /// Its device.
    #[serde(default)]
    pub device: String,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its name.
    pub function: String,
    /// The class of invocations that state no class.
    pub class: Class,
    /// Location of its constants.
    pub residency: Residency,
    /// Size of its constants.
    pub constant_bytes: u64,
    /// Size of its constants that are on the device.
    pub constant_device_bytes: u64,
    /// Size of its constants that are in host memory, whether they are also on the device or not.
    /// The others are on disk only.
    #[serde(default)]
    pub constant_host_bytes: u64,
    /// Memory of its invocations, including memory kept for the next one.
    pub invocation_bytes: u64,
    /// Running invocations.
    pub running: u64,
    /// Queued invocations.
    pub waiting: u64,
}

/// Location of constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// All are on the device.
    Device,
    /// They are being loaded.
    Loading,
    /// Some are not on the device.
    Host,
}
