//! Profiles: measured times of a bundle's launches on one device.
//!
//! A profile is stored beside bundles, not in them, because a file that may be mapped is never
//! written: in a folder named by the bundle's digest, one file per device.

use crate::limits::{NS_MAX, PROFILE_BYTES_MAX, PROFILE_POINTS_MAX, PROFILE_SHAPES_MAX, WAVES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The format version that is written. In version 2, [`LoadPoint`]s have no utilisation and no
/// occupancy.
const FORMAT: u32 = 3;
/// The oldest format version that is read. It has no [`LoadPoint`]s.
const FORMAT_MIN: u32 = 1;

/// Measured times of a bundle's launches on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: u32,
    /// Digest of the bundle.
    pub bundle: String,
    /// Name of the bundle's graph.
    pub model: String,
    /// Name of the device, such as `host`.
    pub device: String,
    /// Number of compute units; the times hold only for this number.
    pub compute_units: u32,
    /// Measurements per set of shapes.
    pub shapes: Vec<ShapeProfile>,
    /// Throughput and latency under load, per share of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<LoadPoint>,
}

/// Throughput and latency of a function on a share of the device, with enough concurrent
/// invocations that the share is never idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPoint {
    /// Values of the graph's symbols.
    pub symbols: Vec<i64>,
    /// Share of the compute units, in thousandths.
    pub lane_permille: u32,
    /// Share of the time, in thousandths.
    pub quota_permille: u32,
    /// Number of measured invocations.
    pub runs: u32,
    /// Invocations per thousand seconds.
    pub per_1000_s: u64,
    /// Median time from request to answer, in nanoseconds.
    pub latency_ns_p50: u64,
    /// 99th percentile of that time, in nanoseconds.
    pub latency_ns_p99: u64,
    /// Part of the time in which launches kept the device busy, in thousandths; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_permille: Option<u32>,
    /// Part of the time of all compute units in which they ran blocks, in thousandths; `None` if
    /// the device does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occupancy_permille: Option<u32>,
}

/// Times of an invocation with given shapes, alone on the device. All times are medians in
/// nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeProfile {
    /// Values of the graph's symbols.
    pub symbols: Vec<i64>,
    /// Number of measured invocations.
    pub runs: u32,
    /// From the request to the start of the first block.
    pub before_ns: u64,
    /// From the start of the first block to the end of the last.
    pub total_ns: u64,
    /// From the end of the last block to the answer.
    pub after_ns: u64,
    /// Every launch, in graph order.
    pub launches: Vec<NodeProfile>,
}

/// Times of one launch in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeProfile {
    /// Index of its node in the graph.
    pub node: u32,
    /// Its kernel.
    pub kernel: String,
    /// Number of blocks, at least one.
    pub blocks: u32,
    /// From the start of the first block to the end of the last.
    pub total_ns: u64,
    /// From the end of the previous launch to the start of the first block.
    pub gap_ns: u64,
    /// Duration of a wave with 1, 2, … blocks on each compute unit; at least one entry.
    pub wave_ns: Vec<u64>,
}

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The content is not a valid profile.
    #[error("{} is not a valid profile: {reason}; create one with `atoll profile`", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Profile {
    /// An empty profile.
    pub fn new(bundle: &str, model: &str, device: &str, compute_units: u32) -> Profile {
        let (bundle, model, device) = (bundle.to_owned(), model.to_owned(), device.to_owned());
        Profile { format: FORMAT, bundle, model, device, compute_units, shapes: Vec::new(), points: Vec::new() }
    }

    /// The path of a profile in the folder `folder` of profiles.
    pub fn path(folder: &Path, bundle: &str, device: &str, compute_units: u32) -> PathBuf {
        folder.join(bundle).join(format!("{device}-{compute_units}.json"))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// The file cannot be read, or its content is invalid or implausible.
    pub fn read(path: &Path) -> Result<Profile, ProfileError> {
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        let invalid = |reason: String| ProfileError::Invalid { path: path.to_owned(), reason };
        let bytes = fs::metadata(path).map_err(io)?.len();
        if bytes > PROFILE_BYTES_MAX {
            return Err(invalid(format!("it has {bytes} bytes, at most {PROFILE_BYTES_MAX} are allowed")));
        }
        let text = fs::read(path).map_err(io)?;
        // Read only the format version first: another format may have other fields.
        let Version { format } = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        if !(FORMAT_MIN..=FORMAT).contains(&format) {
            return Err(invalid(format!("it has format {format}, this Atoll reads formats {FORMAT_MIN} to {FORMAT}")));
        }
        let profile: Profile = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        profile.check().map_err(invalid)?;
        Ok(Profile { format: FORMAT, ..profile })
    }

    /// Writes the profile and creates missing folders. A concurrent reader sees the old or the new
    /// file.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let partial = path.with_extension(format!("json.{}.partial", std::process::id()));
        let text = serde_json::to_vec_pretty(self).map_err(|error| io(error.into()))?;
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
        written.inspect_err(|_| drop(fs::remove_file(&partial))).map_err(io)
    }

    /// The measurements for the given values of the symbols.
    pub fn shape(&self, symbols: &[i64]) -> Option<&ShapeProfile> {
        self.shapes.iter().find(|shape| shape.symbols == symbols)
    }

    /// Adds measurements. They replace those for the same symbols, or the oldest if there are too
    /// many.
    pub fn insert(&mut self, shape: ShapeProfile) {
        self.shapes.retain(|old| old.symbols != shape.symbols);
        if self.shapes.len() >= PROFILE_SHAPES_MAX {
            self.shapes.remove(0);
        }
        self.shapes.push(shape);
    }

    /// Adds a load point. It replaces the point with the same symbols and shares, or the oldest if
    /// there are too many.
    pub fn insert_point(&mut self, point: LoadPoint) {
        self.points.retain(|old| old.key() != point.key());
        if self.points.len() >= PROFILE_POINTS_MAX {
            self.points.remove(0);
        }
        self.points.push(point);
    }

    fn check(&self) -> Result<(), String> {
        if self.format < 2 && !self.points.is_empty() {
            return Err(format!("it has load points, which format {} does not allow", self.format));
        }
        if self.compute_units == 0 || self.shapes.len() > PROFILE_SHAPES_MAX {
            return Err(format!("{} compute units, {} sets of shapes", self.compute_units, self.shapes.len()));
        }
        self.shapes.iter().try_for_each(ShapeProfile::check)?;
        if self.points.len() > PROFILE_POINTS_MAX {
            return Err(format!("{} load points, at most {PROFILE_POINTS_MAX} are allowed", self.points.len()));
        }
        let mut seen = HashSet::new();
        match self.points.iter().find(|point| !seen.insert(point.key())) {
            Some(point) => Err(format!("two load points for {:?}", point.key())),
            None => self.points.iter().try_for_each(LoadPoint::check),
        }
    }
}

/// The part of a file that is read first.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl LoadPoint {
    /// The key of the point: symbols, share of the compute units, share of the time.
    fn key(&self) -> (&[i64], u32, u32) {
        (&self.symbols, self.lane_permille, self.quota_permille)
    }

    fn check(&self) -> Result<(), String> {
        let shares = [self.lane_permille, self.quota_permille];
        if shares.iter().any(|share| !(1..=1000).contains(share)) || self.runs == 0 {
            return Err(format!("a load point with {} runs and shares {shares:?} (in thousandths)", self.runs));
        }
        if self.latency_ns_p99 >= NS_MAX || self.latency_ns_p50 > self.latency_ns_p99 {
            return Err(format!(
                "latencies of {} and {} ns at the median and the 99th percentile",
                self.latency_ns_p50, self.latency_ns_p99
            ));
        }
        let parts = [self.utilisation_permille, self.occupancy_permille];
        if let Some(part) = parts.into_iter().flatten().find(|part| *part > 1000) {
            return Err(format!("a load point with a utilisation or an occupancy of {part} thousandths"));
        }
        Ok(())
    }
}

impl ShapeProfile {
    fn check(&self) -> Result<(), String> {
        let whole = [self.before_ns, self.total_ns, self.after_ns];
        let times = whole.iter().chain(self.launches.iter().flat_map(NodeProfile::times));
        if let Some(ns) = times.clone().find(|ns| **ns >= NS_MAX) {
            return Err(format!("a time of {ns} ns"));
        }
        let invalid = |launch: &&NodeProfile| {
            launch.blocks == 0 || !(1..=WAVES_MAX).contains(&launch.wave_ns.len()) || launch.wave_ns.contains(&0)
        };
        match self.launches.iter().find(invalid) {
            Some(launch) => {
                Err(format!("node {} has {} blocks and waves of {:?} ns", launch.node, launch.blocks, launch.wave_ns))
            }
            None => Ok(()),
        }
    }
}

impl NodeProfile {
    fn times(&self) -> impl Iterator<Item = &u64> + Clone {
        self.wave_ns.iter().chain([&self.total_ns, &self.gap_ns])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let launch =
            NodeProfile { node: 1, kernel: "k".into(), blocks: 8, total_ns: 400, gap_ns: 10, wave_ns: vec![100] };
        let mut profile = Profile::new("abc", "m", "host", 2);
        profile.insert(ShapeProfile {
            symbols: vec![4],
            runs: 3,
            before_ns: 1,
            total_ns: 400,
            after_ns: 2,
            launches: vec![launch],
        });
        profile
    }

    #[test]
    fn a_profile_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = Profile::path(folder.path(), "abc", "host", 2);
        profile().write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file is left");
        assert!(profile().shape(&[4]).is_some() && profile().shape(&[5]).is_none());
        let mut again = profile();
        again.insert(ShapeProfile { total_ns: 500, ..profile().shapes.remove(0) });
        assert_eq!((again.shapes.len(), again.shapes[0].total_ns), (1, 500));
    }

    fn point() -> LoadPoint {
        LoadPoint {
            symbols: vec![4],
            lane_permille: 500,
            quota_permille: 200,
            runs: 9,
            per_1000_s: 1,
            latency_ns_p50: 1,
            latency_ns_p99: 2,
            utilisation_permille: Some(200),
            occupancy_permille: Some(1000),
        }
    }

    #[test]
    fn load_points_of_format_2_have_no_utilisation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let mut written = profile();
        written.insert_point(point());
        written.write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), written);
        let mut old = Profile { format: 2, ..written };
        old.insert_point(LoadPoint { utilisation_permille: None, occupancy_permille: None, ..point() });
        old.write(&path).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains("permille\": null"));
        assert_eq!(Profile::read(&path).unwrap(), Profile { format: FORMAT, ..old });
    }

    #[test]
    fn implausible_profiles_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let refusal = |change: &dyn Fn(&mut Profile)| {
            let mut profile = profile();
            change(&mut profile);
            profile.write(&path).unwrap();
            Profile::read(&path).expect_err("implausible").to_string()
        };
        assert!(refusal(&|p| p.format = 7).contains("format 7"));
        let full = LoadPoint { occupancy_permille: Some(1001), ..point() };
        assert!(refusal(&|p| p.insert_point(full.clone())).contains("an occupancy of 1001 thousandths"));
        assert!(refusal(&|p| p.compute_units = 0).contains("0 compute units"));
        assert!(refusal(&|p| p.shapes[0].launches[0].blocks = 0).contains("node 1 has 0 blocks"));
        assert!(refusal(&|p| p.shapes[0].launches[0].wave_ns.clear()).contains("waves of []"));
        assert!(refusal(&|p| p.shapes[0].launches[0].gap_ns = u64::MAX).contains("a time of"));
        fs::write(&path, "{").unwrap();
        assert!(Profile::read(&path).expect_err("truncated").to_string().contains("not a valid profile"));
    }
}
