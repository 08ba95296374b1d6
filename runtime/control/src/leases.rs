//! Leases: instances that a placement engine holds for a limited time. Also the capacity of
//! devices. The inference port uses the same forms, as JSON.

use crate::devices::DeviceCondition;
use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// A lease to grant. A refusal names the field with its value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseSpec {
    /// The id of the request: 1 to 128 bytes that the client chooses at random. A repetition of the
    /// request has the same id, so that a request whose answer was lost is granted once.
    pub request_id: String,
    /// The client's name for the replica that holds the lease: 1 to 128 bytes.
    pub holder: String,
    /// The function: `NAME` of the tenant, as in `resnet50`, or for operators `TENANT:NAME`.
    pub function: String,
    /// The class of requests that state no class; `None` for that of the function.
    #[serde(default)]
    pub class: Option<Class>,
    /// As [`InstanceSpec::sm_partition`](crate::InstanceSpec::sm_partition); 100 if absent.
    #[serde(default = "all_units")]
    pub sm_partition: f64,
    /// As [`InstanceSpec::quota_request`](crate::InstanceSpec::quota_request).
    pub quota_request: f64,
    /// As [`InstanceSpec::quota_limit`](crate::InstanceSpec::quota_limit); 1 if absent.
    #[serde(default = "all_time")]
    pub quota_limit: f64,
    /// Device memory for its requests and its part of the function's constants, in bytes: at least
    /// 1.
    pub gpu_mem: i64,
    /// Real-time slots; if absent, 1 for the real-time class and 0 otherwise. An instance without a
    /// slot accepts no real-time requests.
    #[serde(default)]
    pub real_time_slots: Option<i64>,
    /// Time to live in seconds, from 5 to 600; 15 if absent. The lease ends this long after it was
    /// granted or last renewed.
    #[serde(default = "ttl")]
    pub ttl_s: i64,
}

fn all_units() -> f64 {
    100.0
}

fn all_time() -> f64 {
    1.0
}

fn ttl() -> i64 {
    LEASE_TTL_S
}

/// Default time to live of a lease in seconds. A holder that renews every five seconds can miss two
/// renewals.
pub const LEASE_TTL_S: i64 = 15;

/// A lease, its epoch and its holder, as the caller names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHold {
    /// Its number.
    pub lease: u64,
    /// Its epoch as the holder knows it: [`LeaseReport::epoch`] of the last answer.
    pub epoch: u64,
    /// The holder; for a takeover the new holder.
    pub holder: String,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Its number. A number is never used again.
    pub lease: u64,
    /// The number of its grant or of its last takeover. Each is higher than all before, also after
    /// a restart of the daemon.
    pub epoch: u64,
    /// Its tenant.
    pub tenant: Tenant,
    /// Its holder.
    pub holder: String,
    /// The function: `NAME` for the daemon's own functions, `TENANT:NAME` for others.
    pub function: String,
    /// The name of its instance. Requests that name it run under its share.
    pub instance: String,
    /// Its device.
    pub device: String,
    /// As [`LeaseSpec::class`].
    pub class: Option<Class>,
    /// As [`LeaseSpec::sm_partition`].
    pub sm_partition: f64,
    /// As [`LeaseSpec::quota_request`].
    pub quota_request: f64,
    /// As [`LeaseSpec::quota_limit`].
    pub quota_limit: f64,
    /// As [`LeaseSpec::gpu_mem`].
    pub gpu_mem: u64,
    /// As [`LeaseSpec::real_time_slots`].
    pub real_time_slots: u32,
    /// As [`LeaseSpec::ttl_s`].
    pub ttl_s: u64,
    /// Time from the answer until it expires unless it is renewed, in milliseconds. Only the
    /// daemon's clock decides when it expires.
    pub expires_in_ms: u64,
}

/// The capacity of the devices of a daemon, and the parts that leases have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityReport {
    /// Number of leases, of all tenants.
    pub leases: usize,
    /// The devices, in order.
    pub devices: Vec<DeviceCapacity>,
}

/// The capacity of a device, and the part of it that leases have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCapacity {
    /// For example `host:0`.
    pub device: String,
    /// Its state. It accepts leases if it is ready or unready.
    pub state: DeviceCondition,
    /// Number of its compute units.
    pub compute_units: u32,
    /// The promised part of compute units and time, in percent: the sum of partition × quota over
    /// its leases.
    pub promised_sm_pct: f64,
    /// The largest free combinations of partition and quota. They overlap, so a new lease may
    /// reduce several of them.
    pub free: Vec<FreeShare>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The memory that leases have, in bytes.
    pub promised_memory_bytes: u64,
    /// Its real-time slots.
    pub real_time_slots: u32,
    /// The real-time slots that leases have.
    pub promised_real_time_slots: u32,
}

/// A partition and a quota that are free at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreeShare {
    /// Compute units, in percent.
    pub sm_partition: f64,
    /// The fraction of the device's time.
    pub quota: f64,
}
