//! How many instances of a function run, and with which resources (FaST-GShare Algorithm 1,
//! mended).
//!
//! [`scale`] is the algorithm: it covers a load with instances of the most efficient point of the
//! profile, and the rest with the smallest sufficient one; it removes the least efficient instances
//! first. [`Autoscaler`] decides when: on a predicted load, with a cool-down, and to and from zero.
//!
//! Differences from the paper: points that break the SLO are not used; a rest of zero adds no
//! instance; an instance that is larger than the surplus is passed over (there the loop never ends);
//! every function is looked at (there the loop returns after the first).

mod predictor;
mod profile;

pub use predictor::{LEVEL_PERCENT, Predictor, RATE_MAX, SEASON_PERCENT, SLOTS_MAX};
pub use profile::{POINTS_MAX, Point, Profile, ProfileError};

use crate::ids::Nanos;
use crate::packing::InstanceId;
use std::fmt;

/// Instances of one function.
pub const INSTANCES_MAX: usize = 1024;

/// An instance that runs or starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number.
    pub id: InstanceId,
    /// The point of the profile that it has.
    pub point: Point,
}

/// Instances to add and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Points of new instances.
    pub add: Vec<Point>,
    /// Instances to remove: no new requests are routed to them, and they go once they are idle.
    pub remove: Vec<InstanceId>,
}

impl Change {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }
}

/// Why a load cannot be covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleError {
    /// No point of the profile keeps the SLO.
    Slo {
        /// The SLO, in nanoseconds.
        slo_ns: u64,
        /// The lowest latency of the profile, in nanoseconds.
        best_ns: u64,
    },
    /// The load needs more instances than a function may have.
    Instances {
        /// How many.
        wanted: u64,
    },
}

impl fmt::Display for ScaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScaleError::Slo { slo_ns, best_ns } => {
                write!(f, "no point of the profile keeps the SLO of {slo_ns} ns; the lowest latency is {best_ns} ns")
            }
            ScaleError::Instances { wanted } => {
                write!(f, "the load needs {wanted} instances; a function has at most {INSTANCES_MAX}")
            }
        }
    }
}

impl std::error::Error for ScaleError {}

/// The instances to add or remove so that they serve a load, in thousandths of a request per
/// second.
///
/// # Errors
/// If no point keeps the SLO, or the load needs more than [`INSTANCES_MAX`] instances.
pub fn scale(profile: &Profile, running: &[Instance], load: u64, slo_ns: u64) -> Result<Change, ScaleError> {
    let capacity: u64 = running.iter().map(|instance| instance.point.throughput).sum();
    if load > capacity {
        scale_up(profile, running.len() as u64, load - capacity, slo_ns)
    } else {
        Ok(scale_down(running, capacity - load))
    }
}

fn scale_up(profile: &Profile, running: u64, missing: u64, slo_ns: u64) -> Result<Change, ScaleError> {
    let Some(efficient) = profile.most_efficient(slo_ns) else {
        let best_ns = profile.points().iter().map(|point| point.latency_ns).min().unwrap_or(0);
        return Err(ScaleError::Slo { slo_ns, best_ns });
    };
    let (count, rest) = (missing / efficient.throughput, missing % efficient.throughput);
    let wanted = running + count + u64::from(rest > 0);
    if wanted > INSTANCES_MAX as u64 {
        return Err(ScaleError::Instances { wanted });
    }
    let mut add = vec![efficient; count as usize];
    if rest > 0 {
        let sufficient = profile.within(slo_ns).filter(|point| point.throughput >= rest);
        add.extend(sufficient.min_by_key(|point| (point.throughput, point.area())));
    }
    Ok(Change { add, remove: Vec::new() })
}

fn scale_down(running: &[Instance], mut surplus: u64) -> Change {
    let mut instances = running.to_vec();
    instances.sort_by(|a, b| a.point.efficiency_cmp(&b.point).then(a.id.cmp(&b.id)));
    let mut remove = Vec::new();
    for instance in instances {
        if instance.point.throughput <= surplus {
            surplus -= instance.point.throughput;
            remove.push(instance.id);
        }
    }
    Change { add: Vec::new(), remove }
}

/// When to scale. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct ScalingConfig {
    /// The latency that requests may have.
    pub slo_ns: u64,
    /// How often [`Autoscaler::step`] is called.
    pub interval_ns: u64,
    /// Capacity above the predicted load, in percent: it serves bursts.
    pub headroom_percent: u64,
    /// For how long there has to be a surplus before instances are removed.
    pub cool_down_ns: u64,
    /// After how long without a request the last instance is removed.
    pub idle_ns: u64,
    /// How long an instance takes to start, as far as it is known.
    pub cold_start_ns: u64,
}

/// The scaling of one function.
#[derive(Debug)]
pub struct Autoscaler {
    config: ScalingConfig,
    predictor: Predictor,
    /// Since when there has been a surplus, and the highest load since then.
    surplus: Option<(Nanos, u64)>,
    last_request: Option<Nanos>,
}

impl Autoscaler {
    /// A function without instances.
    pub fn new(config: ScalingConfig, predictor: Predictor) -> Autoscaler {
        Autoscaler { config, predictor, surplus: None, last_request: None }
    }

    /// Whether the function may have no instance: a request that finds none keeps its SLO.
    pub fn may_scale_to_zero(&self, profile: &Profile) -> bool {
        profile.within(self.slo_from_zero()).next().is_some()
    }

    /// The latency that a request may have after the cold start of its instance.
    fn slo_from_zero(&self) -> u64 {
        self.config.slo_ns.saturating_sub(self.config.cold_start_ns)
    }

    /// The latency that new instances may have. The first one serves requests that waited for its
    /// start.
    fn slo(&self, profile: &Profile, running: &[Instance]) -> u64 {
        let is_first = running.is_empty() && self.may_scale_to_zero(profile);
        if is_first { self.slo_from_zero() } else { self.config.slo_ns }
    }

    /// An interval has passed with `arrivals` requests; `queued` requests wait now.
    ///
    /// # Errors
    /// As [`scale`].
    pub fn step(
        &mut self,
        now: Nanos,
        arrivals: u64,
        queued: u64,
        profile: &Profile,
        running: &[Instance],
    ) -> Result<Change, ScaleError> {
        let rate = self.per_interval(arrivals);
        self.predictor.observe(rate);
        if arrivals + queued > 0 {
            self.last_request = Some(now);
        }
        let load = self.load(now, rate, queued, profile);
        let capacity: u64 = running.iter().map(|instance| instance.point.throughput).sum();
        if load > capacity {
            self.surplus = None;
            return scale(profile, running, load, self.slo(profile, running));
        }
        let (since, highest) = self.surplus.map_or((now, load), |(since, highest)| (since, highest.max(load)));
        self.surplus = Some((since, highest));
        if now.0.saturating_sub(since.0) < self.config.cool_down_ns {
            return Ok(Change::default());
        }
        // The next removal follows after another cool-down.
        self.surplus = None;
        scale(profile, running, highest, self.config.slo_ns)
    }

    /// The load to serve: the higher one of the prediction and of what arrives now, so that a rise
    /// is followed at once and a fall slowly; with headroom, and with what it takes to serve the
    /// queue within the SLO.
    fn load(&self, now: Nanos, rate: u64, queued: u64, profile: &Profile) -> u64 {
        let is_idle = self.last_request.is_none_or(|last| now.0.saturating_sub(last.0) >= self.config.idle_ns);
        if is_idle {
            // One request in an idle time keeps the smallest instance.
            return u64::from(!self.may_scale_to_zero(profile) && self.last_request.is_some());
        }
        let load = self.predictor.predict().max(rate).max(1);
        let queue = u128::from(queued) * 1_000_000_000_000 / u128::from(self.config.slo_ns.max(1));
        load + load * self.config.headroom_percent / 100 + u64::try_from(queue).unwrap_or(RATE_MAX).min(RATE_MAX)
    }

    /// Requests per interval as a rate.
    fn per_interval(&self, requests: u64) -> u64 {
        let rate = u128::from(requests) * 1_000_000_000_000 / u128::from(self.config.interval_ns.max(1));
        u64::try_from(rate).unwrap_or(RATE_MAX).min(RATE_MAX)
    }
}
