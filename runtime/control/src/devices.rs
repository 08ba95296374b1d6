//! The devices of a daemon and the queue in front of them, for operators.

use serde::{Deserialize, Serialize};

/// The devices of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesReport {
    /// The placement policy; `None` if each function has one device.
    pub policy: Option<String>,
    /// Requests that wait for a device. Only for peers that see all tenants.
    pub waiting: Option<u64>,
    /// The devices, in order.
    pub devices: Vec<DeviceReport>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// For example `host:0`.
    pub device: String,
    /// Whether it accepts requests.
    pub state: DeviceCondition,
    /// The reason, if the device is lost.
    pub lost: Option<String>,
    /// Number of its compute units.
    pub compute_units: u32,
    /// Its work. Only for peers that see all tenants.
    pub work: Option<DeviceWork>,
}

/// Whether a device accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceCondition {
    /// It accepts requests.
    Ready,
    /// Its process is being replaced.
    Unready,
    /// It gets no new requests until it is resumed.
    Drained,
    /// It failed permanently.
    Lost,
}

/// The work of a device, over all tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWork {
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Used bytes of its memory.
    pub memory_used_bytes: u64,
    /// Functions loaded onto it.
    pub functions: usize,
    /// Invocations on it, running and waiting.
    pub invocations: u64,
    /// Requests that the placement policy has given it so far.
    pub placed: u64,
    /// Requests that moved to another device because this one was lost or refused them.
    pub moved: u64,
}
