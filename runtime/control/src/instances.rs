//! Instances of functions, and the device time that clients with shares received. The names are
//! those of FaSTPod.

use atoll_core::{Class, Tenant};
use serde::{Deserialize, Serialize};

/// An instance to create.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// Its name, unique per tenant.
    pub name: String,
    /// The function, as in `resnet50` or `TENANT:NAME`. Its tenant owns the instance.
    pub function: String,
    /// The class of requests that state no class; `None` for that of the function.
    pub class: Option<Class>,
    /// Compute units of the device, in percent: above 0, at most 100. The instance is bound to this
    /// many units, rounded up to the granularity of the device, if the device has room for them at
    /// its part of the time.
    pub sm_partition: f64,
    /// The fraction of the device's time that it gets whenever it has work: above 0, at most 1.
    pub quota_request: f64,
    /// Upper limit of its fraction of the device's time: from `quota_request` to 1.
    pub quota_limit: f64,
    /// Device memory for its requests and its part of the function's constants, in bytes; no limit
    /// if `None`.
    pub gpu_mem: Option<u64>,
    /// The target latency of its requests, in milliseconds: requests that take longer are counted,
    /// and those that name no instance go to instances that are expected to keep their target.
    #[serde(default)]
    pub latency_ms: Option<u64>,
}

/// A change of an instance. Fields that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceResize {
    /// Its name, as in [`InstanceReport::instance`].
    pub instance: String,
    /// As [`InstanceSpec::sm_partition`].
    pub sm_partition: Option<f64>,
    /// As [`InstanceSpec::quota_request`].
    pub quota_request: Option<f64>,
    /// As [`InstanceSpec::quota_limit`].
    pub quota_limit: Option<f64>,
    /// As [`InstanceSpec::gpu_mem`].
    pub gpu_mem: Option<u64>,
    /// As [`InstanceSpec::latency_ms`].
    #[serde(default)]
    pub latency_ms: Option<u64>,
}

/// An instance, or a tenant with a share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceReport {
    /// `NAME` for instances of the daemon's own functions, `TENANT:NAME` for others; `None` for the
    /// share of a tenant.
    pub instance: Option<String>,
    /// Its tenant.
    pub tenant: Tenant,
    /// The function, in the same notation; `None` for the share of a tenant.
    pub function: Option<String>,
    /// The class of requests that state no class; `None` for that of the function.
    pub class: Option<Class>,
    /// As [`InstanceSpec::sm_partition`].
    pub sm_partition: f64,
    /// As [`InstanceSpec::quota_request`].
    pub quota_request: f64,
    /// As [`InstanceSpec::quota_limit`].
    pub quota_limit: f64,
    /// As [`InstanceSpec::gpu_mem`].
    pub gpu_mem: Option<u64>,
    /// As [`InstanceSpec::latency_ms`]; that of the model's settings for an instance of the
    /// autoscaler.
    #[serde(default)]
    pub latency_ms: Option<u64>,
    /// The time that it received on each device that has its function; empty while no device has
    /// it.
    pub devices: Vec<ShareEntry>,
    /// Requests that were given to it and have not ended.
    #[serde(default)]
    pub requests: u64,
    /// Requests that have ended since it was created or the daemon started.
    #[serde(default)]
    pub ended: u64,
    /// Those of them that took longer than `latency_ms`.
    #[serde(default)]
    pub late: u64,
    /// Device time of a request, as a mean of the last ones, in milliseconds; `None` before the
    /// first one has ended.
    #[serde(default)]
    pub service_ms: Option<f64>,
    /// Requests per second that it can serve within its limit, by that mean.
    #[serde(default)]
    pub throughput: Option<f64>,
    /// Why the share is not in force although its function is on a device. Requests that name the
    /// instance are refused until the device has room.
    #[serde(default)]
    pub refused: Option<String>,
    /// The device that it is bound to; `None` if it is on each device of its function.
    #[serde(default)]
    pub device: Option<String>,
    /// Why the autoscaler created it or changed its size; `None` if an operator created or last
    /// changed it.
    #[serde(default)]
    pub autoscaled: Option<String>,
    /// Whether it is draining: the autoscaler removes it as soon as its requests have ended.
    #[serde(default)]
    pub draining: bool,
}

/// The share of a client on a device, and the time that it received there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareEntry {
    /// The device.
    pub device: String,
    /// The tenant.
    pub tenant: Tenant,
    /// The instance, without its tenant; `None` for the share of the tenant.
    pub instance: Option<String>,
    /// Compute units of the device.
    #[serde(default)]
    pub compute_units: u32,
    /// The fraction of these compute units that the client has while its work runs. A device
    /// assigns whole units or groups of units, so it may be more than the requested partition.
    #[serde(default)]
    pub granted: f64,
    /// Its area in the plan of the device; `None` if the plan has no room for it.
    #[serde(default)]
    pub area: Option<ShareArea>,
    /// Why it is not bound to the compute units of its area although its partition is less than 100
    /// %.
    #[serde(default)]
    pub unbound: Option<String>,
    /// The promised fraction of the time: the quota request.
    pub promised: f64,
    /// The fraction of the time that its launches kept the device busy, over the last second in
    /// which it was measured.
    pub received: f64,
    /// The largest difference from the promise over any second in which it always had work, as a
    /// fraction of the time.
    pub error_max: f64,
    /// Device time beyond the limit of a window: the 99th percentile over the windows in which it
    /// used the device, in microseconds.
    pub p99_overshoot_us: f64,
    /// Device time that was charged to the client since the share was set, in seconds.
    pub received_s: f64,
    /// The same time multiplied by the compute units that it had, in seconds of one unit.
    #[serde(default)]
    pub received_unit_s: f64,
    /// Tokens that the client was given.
    pub tokens: u64,
    /// Tokens that expired while its launches were on the device.
    pub recalls: u64,
}

/// A rectangle of compute units and time in the plan of a device. Rectangles do not overlap. Their
/// position in time exists only in the plan: it does not determine when work runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareArea {
    /// The first compute unit.
    pub first_unit: u32,
    /// The number of compute units.
    pub units: u32,
    /// Where its time begins, as a fraction.
    pub time_from: f64,
    /// Its time, as a fraction.
    pub time: f64,
}
