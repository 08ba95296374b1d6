//! A model as the device sees it: a sequence of kernels with the times of their waves.

use atoll_core::LaunchProfile;
use atoll_kgraph::{NodeProfile, ShapeProfile};
use std::sync::Arc;

/// A kernel with its number of blocks and their times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its number of blocks, and how long they take.
    pub profile: LaunchProfile,
}

/// A model: its kernels in execution order; a kernel that runs twice is listed twice.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// The kernels.
    pub kernels: Arc<[Arc<Kernel>]>,
    /// Time to copy the inputs before the first kernel can start, in nanoseconds.
    pub before_ns: u64,
    /// Time from the end of the last kernel to the answer, in nanoseconds.
    pub after_ns: u64,
}

impl Model {
    /// A model as `atoll profile` measured it. The gap between two launches is added to the second
    /// one. A launch takes its measured time, which is spread evenly over its waves.
    pub fn of_profile(name: &str, shape: &ShapeProfile, compute_units: u32) -> Model {
        let kernel = |launch: &NodeProfile| {
            let waves = u64::from(launch.blocks.div_ceil(compute_units));
            let wave_ns = [((launch.total_ns + launch.gap_ns) / waves).max(1)];
            Arc::new(Kernel { name: launch.kernel.clone(), profile: LaunchProfile::new(launch.blocks, wave_ns) })
        };
        let kernels = shape.launches.iter().map(kernel).collect();
        Model { name: name.to_owned(), kernels, before_ns: shape.before_ns, after_ns: shape.after_ns }
    }

    /// How long all kernels take one after the other on an idle device, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        self.kernels.iter().map(|kernel| kernel.profile.alone_ns(compute_units)).sum()
    }
}
