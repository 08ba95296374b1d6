//! The profile of a model as other programs get it, which scale the model's instances themselves.

use super::basis::Basis;
use crate::app::App;
use crate::model::Model;
use atoll_core::scaling::{Point, Profile};
use serde::Serialize;

/// The points of a model's stored profile for its first device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StoredProfile {
    /// Empty if there is no valid profile.
    points: Vec<StoredPoint>,
}

/// A measured point.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct StoredPoint {
    /// Compute units, in percent of a device.
    sm_partition: u32,
    /// The fraction of the device's time.
    quota: f64,
    /// Throughput, in thousandths of a request per second.
    per_1000_s: u64,
    /// 99th percentile of the latency of a request, in nanoseconds.
    latency_ns_p99: u64,
}

impl StoredProfile {
    /// The stored profile of a model. Reads a file.
    pub(crate) fn of(app: &App, model: &Model) -> StoredProfile {
        match Basis::of(model, app.scaler.profiles.as_deref(), &app.engine.statistics()) {
            Basis::Profile(profile) => StoredProfile::from(&profile),
            Basis::Learned(_) => StoredProfile::default(),
        }
    }
}

impl From<&Profile> for StoredProfile {
    fn from(profile: &Profile) -> StoredProfile {
        let stored = |point: &Point| StoredPoint {
            sm_partition: point.partition,
            quota: f64::from(point.quota) / 100.0,
            per_1000_s: point.throughput,
            latency_ns_p99: point.latency_ns,
        };
        StoredProfile { points: profile.points().iter().map(stored).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_have_the_units_of_leases() {
        let point = Point { partition: 50, quota: 20, throughput: 7_000, latency_ns: 3_000_000 };
        let stored = StoredProfile::from(&Profile::new(vec![point]).unwrap());
        let json = serde_json::to_value(&stored).unwrap();
        let expected = serde_json::json!({
            "points": [{ "sm_partition": 50, "quota": 0.2, "per_1000_s": 7000, "latency_ns_p99": 3_000_000 }],
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::to_value(StoredProfile::default()).unwrap(), serde_json::json!({ "points": [] }));
    }
}
