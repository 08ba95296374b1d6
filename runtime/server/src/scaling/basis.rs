//! The source of the throughput of a model's instances: a profile of `atoll profile --grid`, or the
//! measured time of its requests.

use crate::model::Model;
use crate::repository::scaling::ScalingSettings;
use atoll_core::scaling::{Point, Profile};
use atoll_core::tokens::WINDOW_NS_DEFAULT;
use atoll_engine::EngineStatistics;
use atoll_kgraph::{LoadPoint, Profile as Measured};
use std::collections::BTreeMap;
use std::path::Path;

/// The source of the throughput of instances.
#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// A profile of one device.
    Profile(Profile),
    /// The measured device time of the model's requests in nanoseconds; `None` until it is
    /// measured.
    Learned(Option<u64>),
}

impl Basis {
    /// The profile of a model for its first device, if there is a valid one; otherwise measured
    /// requests.
    pub(super) fn of(model: &Model, folder: Option<&Path>, statistics: &[EngineStatistics]) -> Basis {
        let read = || {
            let device = &model.on_its_devices(statistics).next()?.device;
            let kind = device.name.split(':').next().unwrap_or(&device.name);
            let path = Measured::path(folder?, model.digest(), kind, device.compute_units);
            if !path.exists() {
                return None;
            }
            let points = Measured::read(&path).map_err(|error| error.to_string()).map(|measured| measured.points);
            match points.and_then(|points| if points.is_empty() { Ok(None) } else { profile(&points).map(Some) }) {
                Ok(profile) => profile,
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(model = model.name, %path, error, "a profile cannot be used for scaling");
                    None
                }
            }
        };
        read().map_or(Basis::Learned(None), Basis::Profile)
    }

    /// Its name in logs.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Basis::Profile(_) => "profile",
            Basis::Learned(_) => "measured requests",
        }
    }

    /// The points of an instance, which is on one device; `None` if nothing is measured yet.
    pub(super) fn points(&self, settings: &ScalingSettings) -> Option<Profile> {
        match self {
            Basis::Profile(profile) => Some(profile.clone()),
            Basis::Learned(service_ns) => {
                let (partition, unit) = (settings.sm_partition, settings.quota_request);
                Profile::learned(partition, unit, (*service_ns)?, WINDOW_NS_DEFAULT).ok()
            }
        }
    }
}

/// The points for one set of symbol values: the set with the most points, the first of equal ones.
fn profile(points: &[LoadPoint]) -> Result<Profile, String> {
    let mut sets: BTreeMap<&[i64], Vec<Point>> = BTreeMap::new();
    for point in points {
        if point.lane_permille % 10 != 0 || point.quota_permille % 10 != 0 {
            return Err("it has points that are not whole percents; measure it with `atoll profile --grid`".into());
        }
        sets.entry(&point.symbols).or_default().push(Point {
            partition: point.lane_permille / 10,
            quota: point.quota_permille / 10,
            throughput: point.per_1000_s,
            latency_ns: point.latency_ns_p99,
        });
    }
    let largest = sets.into_values().rev().max_by_key(Vec::len).unwrap_or_default();
    Profile::new(largest).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(symbols: &[i64], lane_permille: u32, quota_permille: u32, per_1000_s: u64) -> LoadPoint {
        LoadPoint {
            symbols: symbols.into(),
            lane_permille,
            quota_permille,
            runs: 9,
            per_1000_s,
            latency_ns_p50: 1,
            latency_ns_p99: 2,
            utilisation_permille: None,
            occupancy_permille: None,
        }
    }

    #[test]
    fn the_largest_set_of_points_is_used() {
        let points = [point(&[8], 500, 500, 4_000), point(&[1], 500, 200, 7_000), point(&[1], 500, 500, 9_000)];
        let rates: Vec<u64> = profile(&points).unwrap().points().iter().map(|point| point.throughput).collect();
        assert_eq!(rates, [7_000, 9_000]);
    }

    #[test]
    fn profiles_with_faults_are_refused_with_the_cause() {
        let whole = [(500, 200, 5_000), (500, 1000, 9_000), (1000, 200, 6_000), (1000, 1000, 9_500)];
        let whole = whole.map(|(lane, quota, rate)| point(&[], lane, quota, rate));
        assert!(profile(&whole).is_ok());
        let hole = profile(&whole[..3]).unwrap_err();
        assert!(hole.starts_with("no point at 100 % of the compute units × 100 % of the time"), "{hole}");
        let with = |rate| profile(&[&whole[..3], &[point(&[], 1000, 1000, rate)]].concat()).unwrap_err();
        assert!(with(0).starts_with("no throughput at 100 %"), "{}", with(0));
        assert!(with(u64::MAX / 50).starts_with("a throughput above 1000000"), "{}", with(u64::MAX / 50));
        assert!(with(5_000).contains("less throughput than"), "{}", with(5_000));
        assert!(profile(&[point(&[], 333, 200, 1)]).unwrap_err().contains("whole percents"));
    }
}
