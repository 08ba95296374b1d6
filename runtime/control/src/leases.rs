//! Leases: instances that a placement engine holds for a limited time, and what devices can hold.
//! The inference port has the same forms, as JSON.

use crate::devices::DeviceCondition;
use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// A lease to grant. What is not possible is refused with the field's name and value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseSpec {
    /// Chosen by the client at random, 1 to 128 bytes. Repetitions of a request have the same, so
    /// that a request whose answer was lost is granted once.
    pub request_id: String,
    /// The client's name for the replica that holds the lease: 1 to 128 bytes.
    pub holder: String,
    /// The function, as in `resnet50`. It belongs to the tenant, or, for operators, is
    /// `TENANT:NAME`.
    pub function: String,
    /// The class of requests that name none; `None` for that of the function.
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
    /// Real-time slots; if absent, 1 for the real-time class and 0 otherwise. Instances without a
    /// slot take no real-time requests.
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

/// Time to live of a lease that names none, in seconds: three renewals, each of which may be late by
/// five seconds.
pub const LEASE_TTL_S: i64 = 15;

/// A lease as its holder names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHold {
    /// Its number.
    pub lease: u64,
    /// Its epoch as the holder knows it: [`LeaseReport::epoch`] of the last answer.
    pub epoch: u64,
    /// The holder; to take a lease over, the new one.
    pub holder: String,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// Its number. Numbers are not used again.
    pub lease: u64,
    /// The number of its grant, or of the last takeover. Higher than all before, also after a
    /// restart of the daemon.
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
    /// When it ends unless it is renewed, in milliseconds from the answer on. No clock but the
    /// daemon's decides that.
    pub expires_in_ms: u64,
}

/// What the devices of a daemon can hold, and what is promised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityReport {
    /// Number of leases, of all tenants.
    pub leases: usize,
    /// The devices, in order.
    pub devices: Vec<DeviceCapacity>,
}

/// What a device can hold, and what is promised of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCapacity {
    /// For example `host:0`.
    pub device: String,
    /// Whether it takes leases: only if it is ready or unready.
    pub state: DeviceCondition,
    /// Number of its compute units.
    pub compute_units: u32,
    /// The promised part of compute units and time, in percent: the sum of partition × quota over
    /// its leases.
    pub promised_sm_pct: f64,
    /// The largest partitions and quotas that a lease can still have. They overlap: a lease may take
    /// part of several.
    pub free: Vec<FreeShare>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The promised part of it.
    pub promised_memory_bytes: u64,
    /// Real-time slots.
    pub real_time_slots: u32,
    /// The promised ones.
    pub promised_real_time_slots: u32,
}

/// A partition and a quota that are free at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FreeShare {
    /// Compute units, in percent.
    pub sm_partition: f64,
    /// The fraction of the time.
    pub quota: f64,
}
