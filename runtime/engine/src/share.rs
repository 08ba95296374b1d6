//! Clients with shares, and statistics of the device time that they received.

use crate::histogram::Histogram;
use atoll_core::limits::DEFAULT_LANE_QUEUES;
use atoll_core::packing::{Divisible, Rect};
use atoll_core::tokens::{Ppm, ShareSpec, Span};
use atoll_core::{LaneId, Tenant};
use atoll_device::{DeviceInfo, LaneUnits};
use std::fmt;

/// Device queues of a lane for clients with shares: one for each class.
pub(crate) const SHARE_LANE_QUEUES: u32 = 2;

/// How the compute units of a device are divided among clients with shares.
pub fn divisible(device: &DeviceInfo) -> Divisible {
    let step = match device.lane_units {
        LaneUnits::None => 0,
        LaneUnits::Any => 1,
        LaneUnits::Ranges { step } => step.max(1),
    };
    Divisible { units: device.compute_units, step, lanes_max: DEFAULT_LANE_QUEUES / SHARE_LANE_QUEUES }
}

/// A client of the scheduler: a tenant, or an instance of one of its functions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareClient {
    /// The tenant.
    pub tenant: Tenant,
    /// The name of the instance, unique per tenant; `None` for the tenant's requests that name no
    /// instance.
    pub instance: Option<String>,
}

/// The memory limit of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceMemory {
    /// Bytes of device memory for its invocations and its part of the function's constants.
    pub bytes: u64,
    /// Number of instances among which the function's constants are divided, at least one.
    pub sharers: u32,
}

impl fmt::Display for ShareClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.instance {
            None => write!(f, "tenant {}", self.tenant),
            Some(instance) if self.tenant.is_local() => f.write_str(instance),
            Some(instance) => write!(f, "{}:{instance}", self.tenant),
        }
    }
}

/// A share and the device time that its client received.
#[derive(Clone, Debug, PartialEq)]
pub struct ShareStatistics {
    /// The client.
    pub client: ShareClient,
    /// The lane in which it has the share.
    pub lane: LaneId,
    /// The share as it was set.
    pub share: ShareSpec,
    /// The part of the device's compute units that the client has while it has a token. A device
    /// assigns whole units or groups of them, so it may be more than the share's partition.
    pub granted: Ppm,
    /// The compute units to which the client is bound, if any.
    pub bound: Option<Span>,
    /// The rectangle of the client in the device's layout: millionths of the time, and compute
    /// units. `None` if the layout has no room for it.
    pub area: Option<Rect>,
    /// Why the client is not bound, if its partition is less than the device.
    pub unbound: Option<String>,
    /// The window to which the quotas apply, in nanoseconds.
    pub window_ns: u64,
    /// The shortest token of the device, in nanoseconds: 20 times the cost of a launch.
    pub min_token_ns: u64,
    /// Device time charged to the client since the share was set, in nanoseconds.
    pub received_ns: u64,
    /// Charged device time multiplied by the granted compute units, in nanoseconds of one unit.
    pub received_unit_ns: u128,
    /// The fraction of the time that its launches kept the device busy, over the last
    /// [`SHARE_PERIOD_WINDOWS`] measured windows.
    pub received_ratio: f64,
    /// The largest error over [`SHARE_PERIOD_WINDOWS`] consecutive windows in which the client
    /// always had work: the time by which it fell short of its request or exceeded its limit, as a
    /// fraction of these windows.
    pub error_max: f64,
    /// Windows measured since the share was set.
    pub windows: u64,
    /// Device time beyond the limit, for each window in which the client used the device.
    pub overshoot: Histogram,
    /// Number of tokens that the client was given.
    pub tokens: u64,
    /// Number of tokens that ended while launches of the client were on the device.
    pub recalls: u64,
    /// Whether the client has a token.
    pub has_token: bool,
}

/// The number of windows over which [`ShareStatistics::received_ratio`] and
/// [`ShareStatistics::error_max`] are taken: a second, with windows of 40 ms.
pub const SHARE_PERIOD_WINDOWS: usize = crate::meter::PERIOD_WINDOWS;
