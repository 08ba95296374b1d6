//! A model as a device sees it: a line of kernels, each with the times of its waves.

use atoll_core::LaunchProfile;
use atoll_kgraph::{NodeProfile, ShapeProfile};
use std::sync::Arc;

/// A kernel with its shape and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its blocks, and how long they take.
    pub profile: LaunchProfile,
}

/// A model: its kernels in the order in which they run, repeated ones repeated.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub kernels: Arc<[Arc<Kernel>]>,
    /// From its turn until its first kernel can start, in nanoseconds: inputs are brought into
    /// place.
    pub before_ns: u64,
    /// From the end of its last kernel to the answer.
    pub after_ns: u64,
}

impl Model {
    /// A model as `atoll profile` measured it. What lies between two launches counts to the second,
    /// and a launch takes as long as it did, whatever its blocks say one by one.
    pub fn of_profile(name: &str, shape: &ShapeProfile, compute_units: u32) -> Model {
        let kernel = |launch: &NodeProfile| {
            let waves = u64::from(launch.blocks.div_ceil(compute_units));
            let wave_ns = [((launch.total_ns + launch.gap_ns) / waves).max(1)];
            Arc::new(Kernel { name: launch.kernel.clone(), profile: LaunchProfile::new(launch.blocks, wave_ns) })
        };
        let kernels = shape.launches.iter().map(kernel).collect();
        Model { name: name.to_owned(), kernels, before_ns: shape.before_ns, after_ns: shape.after_ns }
    }

    /// How long its kernels take one after the other on an idle device, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        self.kernels.iter().map(|kernel| kernel.profile.alone_ns(compute_units)).sum()
    }
}
