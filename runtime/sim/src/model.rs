//! A model as a device sees it: a line of kernels, each with the times of its waves.

use atoll_core::LaunchProfile;
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
}

impl Model {
    /// How long its kernels take one after the other on an idle device, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        self.kernels.iter().map(|kernel| kernel.profile.alone_ns(compute_units)).sum()
    }
}
