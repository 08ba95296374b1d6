//! Routes a request that names no instance of its function to the instance that is expected to
//! finish it first.
//!
//! The expected finish depends on the measured device time of a request of the instance, on the
//! number of its requests in flight, and on the part of its limit that is left in the current
//! window. Work beyond that continues in the following windows, up to the limit in each.
//!
//! An instance that has served no request yet is expected to be as fast as the fastest measured
//! one, so that it gets work and is measured.

use crate::ids::{DeviceId, Nanos};
use crate::tokens::Ppm;
use std::collections::BTreeMap;

/// Weight of a new measurement in the mean, in percent.
pub const WEIGHT_PERCENT: u64 = 20;

/// The instances of a function and their load. `K` identifies an instance. Deterministic.
#[derive(Clone, Debug)]
pub struct Router<K> {
    window_ns: u64,
    instances: BTreeMap<K, Load>,
}

/// The load of an instance.
#[derive(Clone, Debug)]
struct Load {
    limit: Ppm,
    /// Requests that were given to it and have not ended.
    in_flight: u32,
    /// Device time of a request, as a mean; `None` before the first one has ended.
    service_ns: Option<u64>,
    /// The number of the window to which `used_ns` belongs.
    window: u64,
    /// Device time used in that window, including debt.
    used_ns: u64,
    /// The last batch on each device that served it.
    last: BTreeMap<DeviceId, Batch>,
}

/// The measured computation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Computed {
    /// The device.
    pub device: DeviceId,
    /// Time from its first to its last block, in nanoseconds.
    pub compute_ns: u64,
    /// Number of requests that were computed together, including this one.
    pub batch: u32,
}

/// Requests that were computed together and end together.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    compute_ns: u64,
    /// The device time of the batch divided by its requests.
    own_ns: u64,
    /// Number of requests in the batch.
    requests: u32,
    /// Number of its requests whose end has not been reported.
    left: u32,
    /// When it ended.
    ended: Nanos,
}

/// The instance that the router chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<K> {
    /// The instance.
    pub instance: K,
    /// When it is expected to finish the request.
    pub finish: Nanos,
    /// Whether `finish` is after the request's deadline.
    pub is_late: bool,
}

/// The load and measured speed of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Requests that were given to it and have not ended.
    pub in_flight: u32,
    /// Device time of a request, in nanoseconds; `None` before the first one has ended.
    pub service_ns: Option<u64>,
    /// Requests per second that it can serve within its limit on one device, in thousandths;
    /// `None` before the first request has ended.
    pub throughput: Option<u64>,
    /// Largest number of requests in the last batch of each device, at least 1.
    pub batch: u32,
}

impl Load {
    /// The device time of a batch that ends now and took `compute_ns` from its first to its last
    /// block.
    fn own_ns(&self, now: Nanos, window_ns: u64, compute_ns: u64, last_end: Nanos) -> u64 {
        let spanned = compute_ns.min(now.0.saturating_sub(last_end.0)).max(1);
        // In each window it paused once its limit was used up, until the window ended.
        let ends = now.0 / window_ns - now.0.saturating_sub(spanned) / window_ns;
        let pauses = ends.saturating_mul(window_ns - self.limit.of(window_ns).min(window_ns));
        spanned.saturating_sub(pauses).max(self.limit.of(spanned))
    }
}

impl<K: Ord + Clone> Router<K> {
    /// A router without instances. `window_ns` is the window of the devices' shares.
    pub fn new(window_ns: u64) -> Router<K> {
        Router { window_ns: window_ns.max(1), instances: BTreeMap::new() }
    }

    /// Adds an instance, or changes its limit and keeps its measurements.
    pub fn set(&mut self, instance: K, limit: Ppm) {
        let new = Load { limit, in_flight: 0, service_ns: None, window: 0, used_ns: 0, last: BTreeMap::new() };
        self.instances.entry(instance).or_insert(new).limit = limit;
    }

    /// Removes an instance.
    pub fn remove(&mut self, instance: &K) {
        self.instances.remove(instance);
    }

    /// The instance that is expected to finish a request first, among those for which `may` is
    /// true. Ties go to the instance with fewer requests in flight, then to one without
    /// measurements, then to the smallest `K`. `None` if there is no such instance.
    pub fn choose(&self, now: Nanos, deadline: Option<Nanos>, may: impl Fn(&K) -> bool) -> Option<Choice<K>> {
        let fastest = self.instances.values().filter_map(|load| load.service_ns).min().unwrap_or(1);
        let candidates = self.instances.iter().filter(|(instance, _)| may(instance));
        let rank = |(instance, load): (_, &Load)| {
            (self.finish(load, now, fastest), load.in_flight, load.service_ns.is_some(), instance)
        };
        let (finish, _, _, instance) = candidates.map(rank).min()?;
        let is_late = deadline.is_some_and(|deadline| finish > deadline);
        Some(Choice { instance: instance.clone(), finish, is_late })
    }

    /// The expected end of a new request of an instance.
    fn finish(&self, load: &Load, now: Nanos, fastest_ns: u64) -> Nanos {
        let work = u64::from(load.in_flight).saturating_add(1).saturating_mul(load.service_ns.unwrap_or(fastest_ns));
        let window = now.0 / self.window_ns;
        let allowance = load.limit.of(self.window_ns).max(1);
        // Later windows pay debt.
        let used = match window.saturating_sub(load.window) {
            0 => load.used_ns,
            later => load.used_ns.saturating_sub(allowance.saturating_mul(later)),
        };
        let ends = (window + 1).saturating_mul(self.window_ns);
        let left = allowance.saturating_sub(used).min(ends - now.0);
        if work <= left {
            return Nanos(now.0.saturating_add(work));
        }
        // The work fills whole windows, each up to its allowance; the rest runs at the start of the
        // last one.
        let behind = (work - left).saturating_add(used.saturating_sub(allowance));
        let (windows, rest) = ((behind - 1) / allowance, (behind - 1) % allowance + 1);
        Nanos(ends.saturating_add(windows.saturating_mul(self.window_ns)).saturating_add(rest))
    }

    /// A request was given to an instance.
    pub fn begin(&mut self, instance: &K) {
        if let Some(load) = self.instances.get_mut(instance) {
            load.in_flight = load.in_flight.saturating_add(1);
        }
    }

    /// A request of an instance ended; `computed` is `None` if nothing was computed. The requests
    /// of a batch share its device time equally. Batches of an instance run one after the other on
    /// a device, so the time of a batch counts only from the end of the previous one.
    pub fn end(&mut self, now: Nanos, instance: &K, computed: Option<Computed>) {
        let window_ns = self.window_ns;
        let Some(load) = self.instances.get_mut(instance) else { return };
        load.in_flight = load.in_flight.saturating_sub(1);
        let Some(Computed { device, compute_ns, batch }) = computed else { return };
        let mut last = load.last.get(&device).copied().unwrap_or_default();
        if last.left == 0 || last.compute_ns != compute_ns {
            let own_ns = load.own_ns(now, window_ns, compute_ns, last.ended) / u64::from(batch.max(1));
            let requests = batch.max(1);
            last = Batch { compute_ns, own_ns: own_ns.max(1), requests, left: requests, ended: now };
        }
        last.left -= 1;
        let own = last.own_ns;
        load.last.insert(device, last);
        let mean = load.service_ns.map_or(own, |mean| {
            (u128::from(mean) * u128::from(100 - WEIGHT_PERCENT) + u128::from(own) * u128::from(WEIGHT_PERCENT)) as u64
                / 100
        });
        load.service_ns = Some(mean.max(1));
        let window = now.0 / window_ns;
        if window > load.window {
            let paid = load.limit.of(window_ns).saturating_mul(window - load.window);
            (load.window, load.used_ns) = (window, load.used_ns.saturating_sub(paid));
        }
        load.used_ns = load.used_ns.saturating_add(own);
    }

    /// The load and measured speed of an instance; `None` if it is unknown.
    pub fn standing(&self, instance: &K) -> Option<Standing> {
        let load = self.instances.get(instance)?;
        let per_second = |service: u64| {
            let rate = u128::from(load.limit.millionths()) * 1_000_000 / u128::from(service.max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        Some(Standing {
            in_flight: load.in_flight,
            service_ns: load.service_ns,
            throughput: load.service_ns.map(per_second),
            batch: load.last.values().map(|batch| batch.requests).max().unwrap_or(1),
        })
    }

    /// Whether there are no instances.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }
}
