//! A model as a device sees it: a line of kernels, each with the times of its waves.

use std::sync::Arc;

/// A kernel with its shape and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Blocks of one launch.
    pub blocks: u32,
    /// `wave_ns[j]`: how long a wave takes with j + 1 blocks on each compute unit, in nanoseconds. Its length is how many fit.
    pub wave_ns: Vec<u64>,
}

impl Kernel {
    /// Blocks of it that fit on one compute unit.
    pub fn occupancy(&self) -> u32 {
        self.wave_ns.len() as u32
    }

    /// How long a launch runs that has so many compute units to itself, in nanoseconds.
    pub fn alone_ns(&self, compute_units: u32) -> u64 {
        let wave = u64::from(self.occupancy()) * u64::from(compute_units);
        let (full, rest) = (u64::from(self.blocks) / wave, u64::from(self.blocks) % wave);
        let last = if rest == 0 { 0 } else { self.wave_ns[rest.div_ceil(u64::from(compute_units)) as usize - 1] };
        full * self.wave_ns[self.wave_ns.len() - 1] + last
    }
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
        self.kernels.iter().map(|kernel| kernel.alone_ns(compute_units)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_wave_is_as_full_as_what_is_left() {
        let kernel = |blocks| Kernel { name: "k".into(), blocks, wave_ns: vec![10, 12, 15] };
        let alone = |blocks| kernel(blocks).alone_ns(4);
        assert_eq!([1, 4, 5, 8, 9, 12].map(alone), [10, 10, 12, 12, 15, 15]);
        assert_eq!([13, 24, 25, 36 + 8].map(alone), [25, 30, 40, 57]);
    }
}
