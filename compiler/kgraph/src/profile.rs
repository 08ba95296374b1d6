//! Profiles: how long the launches of a bundle take on one device, measured.
//!
//! They lie beside bundles and not in them, since a file that may be mapped is never written
//! (design D7): in a folder by the bundle's digest, a file for each device.

use crate::limits::{NS_MAX, PROFILE_BYTES_MAX, PROFILE_POINTS_MAX, PROFILE_SHAPES_MAX, WAVES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What is written today.
const FORMAT: u32 = 2;
/// The oldest format that is read. It has no [`LoadPoint`]s.
const FORMAT_MIN: u32 = 1;

/// How long the launches of a bundle take on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: u32,
    /// Digest of the bundle.
    pub bundle: String,
    /// What the bundle's graph is called.
    pub model: String,
    /// The device: `host`.
    pub device: String,
    /// Its compute units; with another number other times hold.
    pub compute_units: u32,
    /// What was measured, for each set of shapes.
    pub shapes: Vec<ShapeProfile>,
    /// Throughput and latency under load, for shares of the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<LoadPoint>,
}

/// How a function does under load on a share of the device: so many invocations at once that the
/// share is never idle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPoint {
    /// The values of the graph's symbols.
    pub symbols: Vec<i64>,
    /// Share of the compute units, in thousandths.
    pub lane_permille: u32,
    /// Share of the time, in thousandths.
    pub quota_permille: u32,
    /// Invocations that were measured.
    pub runs: u32,
    /// Invocations in a thousand seconds.
    pub per_1000_s: u64,
    /// Median from request to answer, in nanoseconds.
    pub latency_ns_p50: u64,
    /// 99th percentile.
    pub latency_ns_p99: u64,
}

/// An invocation with inputs of certain shapes, alone on the device. Times are medians.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShapeProfile {
    /// The values of the graph's symbols.
    pub symbols: Vec<i64>,
    /// Invocations that were measured.
    pub runs: u32,
    /// From the request to the first block, in nanoseconds.
    pub before_ns: u64,
    /// From the start of the first block to the end of the last.
    pub total_ns: u64,
    /// From the end of the last block to the answer.
    pub after_ns: u64,
    /// Every launch, in the order of the graph.
    pub launches: Vec<NodeProfile>,
}

/// A launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeProfile {
    /// Index of its node in the graph.
    pub node: u32,
    /// Its kernel.
    pub kernel: String,
    /// Its blocks, at least one.
    pub blocks: u32,
    /// From the start of its first block to the end of its last, in nanoseconds.
    pub total_ns: u64,
    /// From the end of the launch before it to the start of its first block.
    pub gap_ns: u64,
    /// How long a wave takes with 1, 2, … blocks on each compute unit, in nanoseconds; at least
    /// one.
    pub wave_ns: Vec<u64>,
}

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is no profile.
    #[error("{} is no profile: {reason}; `atoll profile` makes one", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Profile {
    /// A profile of nothing yet.
    pub fn new(bundle: &str, model: &str, device: &str, compute_units: u32) -> Profile {
        let (bundle, model, device) = (bundle.to_owned(), model.to_owned(), device.to_owned());
        Profile { format: FORMAT, bundle, model, device, compute_units, shapes: Vec::new(), points: Vec::new() }
    }

    /// Where the profile of a bundle on a device is kept in a folder of profiles.
    pub fn path(folder: &Path, bundle: &str, device: &str, compute_units: u32) -> PathBuf {
        folder.join(bundle).join(format!("{device}-{compute_units}.json"))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// A file that cannot be read, or whose content cannot have been measured.
    pub fn read(path: &Path) -> Result<Profile, ProfileError> {
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        let invalid = |reason: String| ProfileError::Invalid { path: path.to_owned(), reason };
        let bytes = fs::metadata(path).map_err(io)?.len();
        if bytes > PROFILE_BYTES_MAX {
            return Err(invalid(format!("it has {bytes} bytes, and {PROFILE_BYTES_MAX} are the most that is read")));
        }
        let text = fs::read(path).map_err(io)?;
        // Only the format is looked at first: another one may have other fields.
        let Version { format } = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        if !(FORMAT_MIN..=FORMAT).contains(&format) {
            return Err(invalid(format!("format {format}, and {FORMAT_MIN} to {FORMAT} are read")));
        }
        let profile: Profile = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        profile.check().map_err(invalid)?;
        Ok(Profile { format: FORMAT, ..profile })
    }

    /// Writes it, with the folders that it needs. A reader finds the old file or the new one.
    ///
    /// # Errors
    /// The file system refuses.
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

    /// What was measured for these values of the symbols.
    pub fn shape(&self, symbols: &[i64]) -> Option<&ShapeProfile> {
        self.shapes.iter().find(|shape| shape.symbols == symbols)
    }

    /// Adds what was measured, in place of what there was for the same symbols, or for those
    /// measured first if there are too many.
    pub fn insert(&mut self, shape: ShapeProfile) {
        self.shapes.retain(|old| old.symbols != shape.symbols);
        if self.shapes.len() >= PROFILE_SHAPES_MAX {
            self.shapes.remove(0);
        }
        self.shapes.push(shape);
    }

    /// Adds a point under load, in place of the one for the same symbols and shares, or of the one
    /// measured first if there are too many.
    pub fn insert_point(&mut self, point: LoadPoint) {
        self.points.retain(|old| old.key() != point.key());
        if self.points.len() >= PROFILE_POINTS_MAX {
            self.points.remove(0);
        }
        self.points.push(point);
    }

    fn check(&self) -> Result<(), String> {
        if self.format < 2 && !self.points.is_empty() {
            return Err(format!("points under load, which format {} does not have", self.format));
        }
        if self.compute_units == 0 || self.shapes.len() > PROFILE_SHAPES_MAX {
            return Err(format!("{} compute units, {} sets of shapes", self.compute_units, self.shapes.len()));
        }
        self.shapes.iter().try_for_each(ShapeProfile::check)?;
        if self.points.len() > PROFILE_POINTS_MAX {
            return Err(format!("{} points, and {PROFILE_POINTS_MAX} are the most", self.points.len()));
        }
        let mut seen = HashSet::new();
        match self.points.iter().find(|point| !seen.insert(point.key())) {
            Some(point) => Err(format!("two points for {:?}", point.key())),
            None => self.points.iter().try_for_each(LoadPoint::check),
        }
    }
}

/// What the first look at a file reads.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl LoadPoint {
    /// What it is a point of: symbols, share of the compute units, share of the time.
    fn key(&self) -> (&[i64], u32, u32) {
        (&self.symbols, self.lane_permille, self.quota_permille)
    }

    fn check(&self) -> Result<(), String> {
        let shares = [self.lane_permille, self.quota_permille];
        if shares.iter().any(|share| !(1..=1000).contains(share)) || self.runs == 0 {
            return Err(format!("a point of {} runs at {shares:?} thousandths of units and time", self.runs));
        }
        if self.latency_ns_p99 >= NS_MAX || self.latency_ns_p50 > self.latency_ns_p99 {
            return Err(format!(
                "latencies of {} and {} ns at the median and the 99th percentile",
                self.latency_ns_p50, self.latency_ns_p99
            ));
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
        let odd = |launch: &&NodeProfile| {
            launch.blocks == 0 || !(1..=WAVES_MAX).contains(&launch.wave_ns.len()) || launch.wave_ns.contains(&0)
        };
        match self.launches.iter().find(odd) {
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
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = Profile::path(folder.path(), "abc", "host", 2);
        profile().write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        assert!(profile().shape(&[4]).is_some() && profile().shape(&[5]).is_none());
        let mut again = profile();
        again.insert(ShapeProfile { total_ns: 500, ..profile().shapes.remove(0) });
        assert_eq!((again.shapes.len(), again.shapes[0].total_ns), (1, 500));
    }

    #[test]
    fn what_nobody_can_have_measured_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.json");
        let refusal = |change: &dyn Fn(&mut Profile)| {
            let mut profile = profile();
            change(&mut profile);
            profile.write(&path).unwrap();
            Profile::read(&path).expect_err("nonsense").to_string()
        };
        assert!(refusal(&|p| p.format = 7).contains("format 7"));
        assert!(refusal(&|p| p.compute_units = 0).contains("0 compute units"));
        assert!(refusal(&|p| p.shapes[0].launches[0].blocks = 0).contains("node 1 has 0 blocks"));
        assert!(refusal(&|p| p.shapes[0].launches[0].wave_ns.clear()).contains("waves of []"));
        assert!(refusal(&|p| p.shapes[0].launches[0].gap_ns = u64::MAX).contains("a time of"));
        fs::write(&path, "{").unwrap();
        assert!(Profile::read(&path).expect_err("cut off").to_string().contains("is no profile"));
    }
}
