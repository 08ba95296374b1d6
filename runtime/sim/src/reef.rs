//! REEF's published files: a model's kernel schedule (`NAME.graph.json`) and its times
//! (`NAME.profile.json`, in microseconds).
//!
//! Each kernel was measured by itself, so its times include a launch latency. The model was
//! measured as a whole, where launch latencies overlap with execution. If the kernels together take
//! longer than `model_latency`, the same time is subtracted from each wave, so that
//! [`Model::alone_ns`] equals `model_latency`. No wave becomes shorter than [`KERNEL_NS_MIN`].

use crate::error::SimError;
use crate::limits::{BLOCKS_MAX, FILE_BYTES_MAX, KERNELS_MAX, WAVE_NS_MAX, WAVES_MAX};
use crate::model::{Kernel, Model};
use atoll_core::LaunchProfile;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// The shortest duration of a wave: that of an empty kernel between other kernels.
const KERNEL_NS_MIN: u64 = 2_000;

/// Bisection steps until the sum of all kernels matches the latency of the model.
const SEARCH_STEPS: u32 = 40;

#[derive(Deserialize)]
struct Graph {
    #[serde(default)]
    storage: Vec<Storage>,
    kernels: Vec<Scheduled>,
}

/// A tensor: inputs, outputs and parameters of kernels.
#[derive(Deserialize)]
struct Storage {
    /// Its number of elements.
    size: u64,
    /// The type of its elements, which ends in their bits: `float32`.
    stype: String,
}

#[derive(Deserialize)]
struct Scheduled {
    name: String,
    /// Grid dimensions, then block dimensions.
    launch_params: [u64; 6],
    /// Indices of its tensors.
    #[serde(default)]
    args: Vec<usize>,
}

/// Bits of an element whose type does not say it.
const ELEMENT_BITS: u64 = 32;

impl Storage {
    fn bytes(&self) -> u64 {
        let digits = self.stype.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        self.size.saturating_mul(digits.parse().unwrap_or(ELEMENT_BITS).div_ceil(8))
    }
}

#[derive(Deserialize)]
struct Profile {
    model_latency: u64,
    kernel_latency: HashMap<String, Times>,
}

#[derive(Deserialize)]
struct Times {
    latency: Vec<u64>,
}

/// Reads a JSON file of limited size.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SimError> {
    let io = |source| SimError::Io { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(SimError::TooLarge { path: path.to_owned(), bytes, max: FILE_BYTES_MAX });
    }
    let text = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&text).map_err(|source| SimError::Json { path: path.to_owned(), source })
}

/// The part of a bandwidth that bytes in a time are, in thousandths: at most all of it, and 0 for a
/// bandwidth of 0.
fn permille(bytes: u64, ns: u64, bytes_per_us: u64) -> u32 {
    let whole = u128::from(ns) * u128::from(bytes_per_us);
    let part = (u128::from(bytes) * 1_000_000).checked_div(whole).unwrap_or(0);
    part.min(1000) as u32
}

impl Model {
    /// Reads a model in REEF's format, measured on a device with `compute_units` compute units.
    ///
    /// # Errors
    /// If a file cannot be read or has invalid contents: kernels without times, an empty grid, or
    /// numbers beyond the limits.
    pub fn read_reef(graph: &Path, profile: &Path, name: &str, compute_units: u32) -> Result<Model, SimError> {
        Model::read_reef_with_bandwidth(graph, profile, name, compute_units, 0)
    }

    /// Like [`Model::read_reef`], with an estimate of each kernel's memory bandwidth on a device
    /// with `bytes_per_us`, unless that is 0: a kernel reads or writes each of its tensors once, in
    /// the time that it takes alone. Caches make it less.
    ///
    /// # Errors
    /// As [`Model::read_reef`].
    pub fn read_reef_with_bandwidth(
        graph: &Path,
        profile: &Path,
        name: &str,
        compute_units: u32,
        bytes_per_us: u64,
    ) -> Result<Model, SimError> {
        let invalid = |path: &Path, what: String| SimError::Invalid { path: path.to_owned(), what };
        let Graph { storage, kernels } = read_json(graph)?;
        let Profile { model_latency, kernel_latency } = read_json(profile)?;
        if kernels.is_empty() || kernels.len() > KERNELS_MAX {
            return Err(invalid(graph, format!("{} kernels; there must be 1 to {KERNELS_MAX}", kernels.len())));
        }
        let mut known: HashMap<(String, u64, u64), Arc<Kernel>> = HashMap::new();
        let mut ordered = Vec::with_capacity(kernels.len());
        for Scheduled { name, launch_params, args } in kernels {
            let blocks = launch_params[..3].iter().try_fold(1_u64, |blocks, extent| blocks.checked_mul(*extent));
            let blocks = blocks.filter(|blocks| (1..=BLOCKS_MAX).contains(blocks));
            let blocks = blocks
                .ok_or_else(|| invalid(graph, format!("kernel `{name}` has a grid of {:?}", &launch_params[..3])))?;
            let times =
                kernel_latency.get(&name).ok_or_else(|| invalid(profile, format!("no times of kernel `{name}`")))?;
            let wave_ns: Option<Vec<u64>> =
                times.latency.iter().map(|us| us.checked_mul(1000).filter(|ns| *ns <= WAVE_NS_MAX)).collect();
            let wave_ns = wave_ns.filter(|waves| (1..=WAVES_MAX).contains(&waves.len()));
            let wave_ns =
                wave_ns.ok_or_else(|| invalid(profile, format!("kernel `{name}` has no times that make sense")))?;
            let tensors: BTreeSet<usize> = args.into_iter().collect();
            let moved = tensors.iter().filter_map(|at| storage.get(*at)).map(Storage::bytes);
            let moved = moved.fold(0, u64::saturating_add);
            let kernel = known.entry((name.clone(), blocks, moved)).or_insert_with(|| {
                let mut profile = LaunchProfile::new(blocks as u32, wave_ns);
                profile.bandwidth_permille = permille(moved, profile.alone_ns(compute_units), bytes_per_us);
                Arc::new(Kernel { name, profile })
            });
            ordered.push(Arc::clone(kernel));
        }
        let measured = Model { name: name.to_owned(), kernels: ordered.into(), before_ns: 0, after_ns: 0 };
        Ok(measured.without_launches(model_latency.saturating_mul(1000), compute_units))
    }

    /// Subtracts the same time from each wave, so that the whole model takes `whole_ns`. A model
    /// that takes no longer than that is not changed.
    fn without_launches(&self, whole_ns: u64, compute_units: u32) -> Model {
        let (mut low, mut high) =
            (0, self.kernels.iter().flat_map(|kernel| kernel.profile.wave_ns.iter().copied()).max().unwrap_or(0));
        for _ in 0..SEARCH_STEPS {
            let middle = low + (high - low) / 2;
            let is_enough = self.shortened(middle).alone_ns(compute_units) <= whole_ns;
            if is_enough { high = middle } else { low = middle }
        }
        if self.alone_ns(compute_units) <= whole_ns { self.clone() } else { self.shortened(high) }
    }

    fn shortened(&self, by_ns: u64) -> Model {
        let shorten = |kernel: &Kernel| {
            let wave_ns = kernel.profile.wave_ns.iter().map(|ns| ns.saturating_sub(by_ns).max(KERNEL_NS_MIN.min(*ns)));
            let profile = LaunchProfile { wave_ns: wave_ns.collect(), ..kernel.profile.clone() };
            Arc::new(Kernel { name: kernel.name.clone(), profile })
        };
        let mut known: HashMap<*const Kernel, Arc<Kernel>> = HashMap::new();
        let kernels = self
            .kernels
            .iter()
            .map(|kernel| Arc::clone(known.entry(Arc::as_ptr(kernel)).or_insert_with(|| shorten(kernel))));
        Model { kernels: kernels.collect(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(graph: &str, profile: &str) -> Result<Model, SimError> {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = [("graph", graph), ("profile", profile)].map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        });
        Model::read_reef(&paths[0], &paths[1], "m", 60)
    }

    const GRAPH: &str = r#"{"storage": [], "kernels": [
        {"name": "a", "launch_params": [60, 1, 1, 64, 1, 1], "args": []},
        {"name": "b", "launch_params": [30, 5, 1, 64, 1, 1], "args": []},
        {"name": "a", "launch_params": [60, 1, 1, 64, 1, 1], "args": []}]}"#;

    #[test]
    fn what_launches_took_is_taken_off() {
        let profile = r#"{"model_latency": 70, "kernel_latency": {
            "a": {"total_latency": 20, "latency": [20]},
            "b": {"total_latency": 60, "latency": [40, 60]}}}"#;
        let model = files(GRAPH, profile).expect("a model");
        assert_eq!(model.kernels.len(), 3);
        assert!(Arc::ptr_eq(&model.kernels[0], &model.kernels[2]));
        // The 150 blocks of b run in a wave of 120 and one of 30, which take 100 µs together; both
        // launches of a take 40 µs. So 70 µs are subtracted over four waves.
        assert!(model.alone_ns(60).abs_diff(70_000) <= 4, "{}", model.alone_ns(60));
        assert_eq!(*model.kernels[0].profile.wave_ns, [2_500]);
        let slow = profile.replace("70", "700");
        assert_eq!(files(GRAPH, &slow).expect("a model").alone_ns(60), 140_000, "nothing is added");
    }

    #[test]
    fn bandwidth_is_estimated_from_the_tensors_of_a_kernel() {
        let folder = tempfile::tempdir().expect("a folder");
        let graph = r#"{"storage": [{"size": 1000, "stype": "float32"}, {"size": 500, "stype": "int64"}],
            "kernels": [{"name": "a", "launch_params": [60, 1, 1, 64, 1, 1], "args": [0, 1, 0, 7]}]}"#;
        let profile = r#"{"model_latency": 1000, "kernel_latency": {"a": {"latency": [10]}}}"#;
        let paths = [("graph", graph), ("profile", profile)].map(|(name, text)| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        });
        let bandwidth = |bytes_per_us| {
            let model = Model::read_reef_with_bandwidth(&paths[0], &paths[1], "m", 60, bytes_per_us);
            model.expect("a model").kernels[0].profile.bandwidth_permille
        };
        // 8,000 bytes in 10 µs.
        assert_eq!([0, 8_000, 1_000, 10].map(bandwidth), [0, 100, 800, 1000]);
    }

    #[test]
    fn invalid_files_are_rejected() {
        let profile =
            r#"{"model_latency": 70, "kernel_latency": {"a": {"latency": [20]}, "b": {"latency": [40, 60]}}}"#;
        let refusal = |graph: &str, profile: &str| files(graph, profile).expect_err("nonsense").to_string();
        assert!(refusal("{", profile).contains("EOF"));
        assert!(refusal(r#"{"kernels": []}"#, profile).contains("0 kernels"));
        assert!(refusal(&GRAPH.replace("60, 1, 1, 64", "0, 1, 1, 64"), profile).contains("has a grid of [0, 1, 1]"));
        assert!(
            refusal(&GRAPH.replace("60, 1, 1, 64", "4294967296, 4294967296, 1, 64"), profile).contains("has a grid")
        );
        assert!(refusal(GRAPH, &profile.replace("[20]", "[]")).contains("no times that make sense"));
        assert!(
            refusal(GRAPH, &profile.replace("[20]", "[18446744073709551615]")).contains("no times that make sense")
        );
        assert!(refusal(GRAPH, &profile.replace("\"b\"", "\"c\"")).contains("no times of kernel `b`"));
    }
}
