//! The instances that a load needs: Algorithm 1 of FaST-GShare, corrected.

use super::fit::capacity_of;
use super::profile::{Point, Profile};
use crate::ids::Nanos;
use crate::packing::InstanceId;
use std::fmt;

/// Instances of one function.
pub const INSTANCES_MAX: usize = 1024;

/// An instance that runs or is starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number.
    pub id: InstanceId,
    /// Its point of the profile: resources, throughput and latency.
    pub point: Point,
}

/// Instances to add, to resize and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Points of new instances.
    pub add: Vec<Point>,
    /// Instances to resize, each with its new point.
    pub resize: Vec<(InstanceId, Point)>,
    /// Instances to remove. They get no new requests, and are removed once they are idle.
    pub remove: Vec<InstanceId>,
}

impl Change {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.resize.is_empty() && self.remove.is_empty()
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
    /// The load needs more than [`INSTANCES_MAX`] instances.
    Instances {
        /// The number of instances that it needs.
        wanted: u64,
    },
    /// The clock did not advance between two steps, so no rate can be computed.
    Clock {
        /// The time of the previous step.
        last: Nanos,
        /// The time of this step.
        now: Nanos,
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
            ScaleError::Clock { last, now } => {
                write!(f, "the clock went from {} ns to {} ns; nothing is decided until it goes on", last.0, now.0)
            }
        }
    }
}

impl std::error::Error for ScaleError {}

/// The instances to add or remove so that `running` serve `load`, which is in thousandths of a
/// request per second.
///
/// # Errors
/// If no point keeps the SLO, or the load needs more than [`INSTANCES_MAX`] instances.
pub fn scale(profile: &Profile, running: &[Instance], load: u64, slo_ns: u64) -> Result<Change, ScaleError> {
    let capacity = capacity_of(running);
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
    Ok(Change { add, ..Change::default() })
}

/// Removes the least efficient instances first, as far as the surplus allows.
pub(super) fn scale_down(running: &[Instance], mut surplus: u64) -> Change {
    let mut instances = running.to_vec();
    instances.sort_by(|a, b| a.point.efficiency_cmp(&b.point).then(a.id.cmp(&b.id)));
    let mut remove = Vec::new();
    for instance in instances {
        if instance.point.throughput <= surplus {
            surplus -= instance.point.throughput;
            remove.push(instance.id);
        }
    }
    Change { remove, ..Change::default() }
}
