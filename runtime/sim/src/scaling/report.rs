//! What a run of scaled functions reports.

/// A function in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionScaling {
    /// Its name.
    pub name: String,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that took longer than the target latency, and those that were not served.
    pub misses: u64,
    /// Requests that were not served by the end of the run.
    pub unserved: u64,
    /// Latencies of the requests that were served, in nanoseconds, ascending.
    pub latencies_ns: Vec<u64>,
    /// The longest latency of a request that found no instance, in nanoseconds; `None` if each
    /// found one.
    pub from_zero_ns: Option<u64>,
    /// Instances that were created, or taken back while they drained, without successors of
    /// instances that moved.
    pub created: u64,
    /// Instances that were to be removed, without those that moved.
    pub removed: u64,
}

impl FunctionScaling {
    /// The latency that a part of the requests does not exceed, in nanoseconds; 0 without requests.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let rank = (part.clamp(0.0, 1.0) * self.latencies_ns.len() as f64).ceil() as usize;
        self.latencies_ns.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// The state at the end of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// Requests of all functions in the interval, per second.
    pub rate: f64,
    /// Requests per second that all instances serve.
    pub capacity: f64,
    /// Instances that take requests.
    pub instances: u64,
    /// Devices that have instances.
    pub devices: u64,
}

/// What a run reports. Time on a device counts in device-seconds: a second of a whole device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScalingReport {
    /// The functions, in their order.
    pub functions: Vec<FunctionScaling>,
    /// What was promised to instances: their compute units times their time.
    pub promised_device_s: f64,
    /// How long devices had instances.
    pub used_device_s: f64,
    /// The most devices that had instances at once.
    pub devices_max: u64,
    /// The largest part of a device that was promised at one time, including to leaving instances.
    /// At most 1, except for the oracle, which does not wait until instances have left.
    pub fullest: f64,
    /// Instances that moved.
    pub moves: u64,
    /// What the moves cost.
    pub move_cost_device_s: f64,
    /// How often no device had room.
    pub refused: u64,
    /// One for each interval.
    pub samples: Vec<Sample>,
}

impl ScalingReport {
    /// The part of all requests that missed their target latency.
    pub fn miss_ratio(&self) -> f64 {
        let sum = |of: fn(&FunctionScaling) -> u64| self.functions.iter().map(of).sum::<u64>() as f64;
        sum(|function| function.misses) / sum(|function| function.requests).max(1.0)
    }
}
