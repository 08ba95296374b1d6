//! Routes a request that names no instance of its function to the instance that is expected to
//! finish it first.
//!
//! The expected finish depends on the measured device time of a request of the instance, on the
//! number of its requests in flight, and on the part of its limit that is left in the current
//! window. Work beyond that continues in the following windows, up to the limit in each.
//!
//! An instance that has served no request yet is expected to be as fast as the fastest measured
//! one, so that it gets work and is measured.
//!
//! An instance that is expected to finish within the deadline, and within its own target latency,
//! is chosen before one that is not.

use crate::ids::{Class, DeviceId, Nanos};
use crate::tokens::Ppm;
use std::collections::BTreeMap;

/// Weight of a new measurement in the mean, in percent.
pub const WEIGHT_PERCENT: u64 = 20;
/// The device time of the shortest request is that of this period and of the one before.
pub const PERIOD_NS: u64 = 10_000_000_000;

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
    /// Its target latency.
    target_ns: Option<u64>,
    /// Requests that were given to it and have not ended.
    in_flight: Vec<Urgency>,
    /// Device time of a request, as a mean; `None` before the first one has ended.
    service_ns: Option<u64>,
    /// Device time of the shortest recent request.
    least: Least,
    /// The number of the window to which `used_ns` belongs.
    window: u64,
    /// Device time used in that window, including debt.
    used_ns: u64,
    /// The last batch on each device that served it.
    last: BTreeMap<DeviceId, Batch>,
}

/// What decides which of two requests of an instance runs first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Urgency {
    /// The class.
    pub class: Class,
    /// The priority within the class; a lower number is more urgent.
    pub priority: u32,
    /// The deadline.
    pub deadline: Option<Nanos>,
}

/// The least device time of a request, over the current period and the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Least {
    period: u64,
    now_ns: Option<u64>,
    before_ns: Option<u64>,
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

impl Urgency {
    /// Whether a request runs before `later`, which arrived after it, whether the policy orders by
    /// arrival, by priority or by deadline.
    fn is_before(&self, later: &Urgency) -> bool {
        let ends = |of: &Urgency| of.deadline.unwrap_or(Nanos(u64::MAX));
        let is_urgent = self.priority <= later.priority && ends(self) <= ends(later);
        self.class < later.class || (self.class == later.class && is_urgent)
    }
}

impl Least {
    /// Its values as of `now`.
    fn at(self, now: Nanos) -> Least {
        let period = now.0 / PERIOD_NS;
        match period.saturating_sub(self.period) {
            0 => self,
            1 => Least { period, now_ns: None, before_ns: self.now_ns },
            _ => Least { period, now_ns: None, before_ns: None },
        }
    }

    fn note(&mut self, now: Nanos, own_ns: u64) {
        *self = self.at(now);
        self.now_ns = Some(self.now_ns.map_or(own_ns, |least| least.min(own_ns)));
    }

    /// `None` if no request was measured in these periods.
    fn get(self, now: Nanos) -> Option<u64> {
        let Least { now_ns, before_ns, .. } = self.at(now);
        now_ns.into_iter().chain(before_ns).min()
    }
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
    /// Whether no instance that may serve the request can finish it before its deadline: each has
    /// measured requests lately, and would be late even if the requests that run first and this one
    /// took as little time as the shortest of these.
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
    fn new(limit: Ppm) -> Load {
        Load {
            limit,
            target_ns: None,
            in_flight: Vec::new(),
            service_ns: None,
            least: Least::default(),
            window: 0,
            used_ns: 0,
            last: BTreeMap::new(),
        }
    }

    /// The number of devices that have served its requests, at least 1.
    fn devices(&self) -> u64 {
        self.last.len().max(1) as u64
    }

    /// Requests of the last batch of all devices together, at least 1.
    fn at_once(&self) -> usize {
        self.last.values().map(|batch| batch.requests as usize).sum::<usize>().max(1)
    }

    fn requests(&self) -> u32 {
        u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX)
    }

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

    /// Adds an instance, or changes its limit and target latency and keeps its measurements.
    pub fn set(&mut self, instance: K, limit: Ppm, target_ns: Option<u64>) {
        let load = self.instances.entry(instance).or_insert_with(|| Load::new(limit));
        (load.limit, load.target_ns) = (limit, target_ns);
    }

    /// Removes an instance.
    pub fn remove(&mut self, instance: &K) {
        self.instances.remove(instance);
    }

    /// The instance that is expected to finish a request first, among those for which `may` is
    /// true. Instances that are expected to miss the deadline come last, and before them those that
    /// are expected to miss their own target latency. Ties go to the instance with fewer requests
    /// in flight, then to one without measurements, then to the smallest `K`. `None` if there is no
    /// such instance.
    pub fn choose(&self, now: Nanos, request: &Urgency, may: impl Fn(&K) -> bool) -> Option<Choice<K>> {
        let fastest = self.instances.values().filter_map(|load| load.service_ns).min().unwrap_or(1);
        let candidates: Vec<(&K, &Load)> = self.instances.iter().filter(|(instance, _)| may(instance)).collect();
        let rank = |(instance, load): (_, &Load)| {
            let finish = self.finish(load, now, fastest);
            let misses = request.deadline.is_some_and(|deadline| finish > deadline);
            let is_slow = load.target_ns.is_some_and(|target| finish.0 - now.0 > target);
            (misses, is_slow, finish, load.in_flight.len(), load.service_ns.is_some(), instance)
        };
        let (.., finish, _, _, instance) = candidates.iter().copied().map(rank).min()?;
        let is_late = |deadline: Nanos| {
            let earliest = |load: &Load| self.earliest(load, now, request);
            candidates.iter().all(|(_, load)| earliest(load).is_some_and(|earliest| earliest > deadline))
        };
        Some(Choice { instance: instance.clone(), finish, is_late: request.deadline.is_some_and(is_late) })
    }

    /// The expected end of a new request of an instance.
    fn finish(&self, load: &Load, now: Nanos, fastest_ns: u64) -> Nanos {
        let turns = u64::from(load.requests()) / load.devices() + 1;
        let work = turns.saturating_mul(load.service_ns.unwrap_or(fastest_ns));
        // Later windows pay debt.
        let paid =
            load.limit.of(self.window_ns).max(1).saturating_mul((now.0 / self.window_ns).saturating_sub(load.window));
        self.end_of(work, load.limit, now, load.used_ns.saturating_sub(paid))
    }

    /// The earliest end of a new request of an instance, if the requests that run before it and
    /// itself are as short as the shortest recent one, those that run now are about to end, and
    /// nothing of the limit is used up. `None` if no request was measured lately.
    fn earliest(&self, load: &Load, now: Nanos, request: &Urgency) -> Option<Nanos> {
        let least = load.least.get(now)?;
        let before = load.in_flight.iter().filter(|other| other.is_before(request)).count();
        let turns = before.saturating_sub(load.at_once()) as u64 / load.devices() + 1;
        let work = turns.saturating_mul(least);
        Some(match request.class {
            // It may use the limit of later windows.
            Class::RealTime => Nanos(now.0.saturating_add(work)),
            Class::BestEffort => self.end_of(work, load.limit, now, 0),
        })
    }

    /// When work ends that begins now, if `used` of the limit is used up in the current window.
    /// `used` exceeds the limit by the debt.
    fn end_of(&self, work: u64, limit: Ppm, now: Nanos, used: u64) -> Nanos {
        let allowance = limit.of(self.window_ns).max(1);
        let ends = (now.0 / self.window_ns + 1).saturating_mul(self.window_ns);
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
    pub fn begin(&mut self, instance: &K, request: Urgency) {
        if let Some(load) = self.instances.get_mut(instance) {
            load.in_flight.push(request);
        }
    }

    /// A request of an instance ended, which began as `request`; `computed` is `None` if nothing was
    /// computed. The requests of a batch share its device time equally. Batches of an instance run
    /// one after the other on a device, so the time of a batch counts only from the end of the
    /// previous one.
    pub fn end(&mut self, now: Nanos, instance: &K, request: &Urgency, computed: Option<Computed>) {
        let window_ns = self.window_ns;
        let Some(load) = self.instances.get_mut(instance) else { return };
        if let Some(at) = load.in_flight.iter().position(|other| other == request) {
            load.in_flight.swap_remove(at);
        }
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
        load.least.note(now, own);
        let window = now.0 / window_ns;
        if window > load.window {
            let paid = load.limit.of(window_ns).saturating_mul(window - load.window);
            (load.window, load.used_ns) = (window, load.used_ns.saturating_sub(paid));
        }
        load.used_ns = load.used_ns.saturating_add(own / load.devices());
    }

    /// The load and measured speed of an instance; `None` if it is unknown.
    pub fn standing(&self, instance: &K) -> Option<Standing> {
        let load = self.instances.get(instance)?;
        let per_second = |service: u64| {
            let rate = u128::from(load.limit.millionths()) * 1_000_000 / u128::from(service.max(1));
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        Some(Standing {
            in_flight: load.requests(),
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
