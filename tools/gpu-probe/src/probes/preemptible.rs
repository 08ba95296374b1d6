//! The kernels of `preemptible.ptx` and their parameters.

use crate::device::{DeviceWords, ProbeError};
use atoll_cuda::{Arg, Context, HostWords, Module};
use std::sync::Arc;

/// One body in several transformed variants.
pub(crate) const PREEMPTIBLE_PTX: &str = include_str!("../../kernels/preemptible.ptx");

/// Threads per block in these probes.
pub(crate) const THREADS: u32 = 256;

/// Memory for launches of these kernels.
pub(crate) struct Preemptible {
    /// The kernels.
    pub(crate) module: Module,
    /// The epoch word, in host memory.
    pub(crate) epoch: HostWords,
    /// Set by blocks that exit early.
    pub(crate) evicted: DeviceWords,
    data: DeviceWords,
    progress: DeviceWords,
    blocks: u32,
}

impl Preemptible {
    /// Memory for launches of up to `blocks` blocks, with separate progress bytes for `launches`
    /// launches.
    pub(crate) fn new(context: &Arc<Context>, blocks: u32, launches: u32) -> Result<Preemptible, ProbeError> {
        let progress_words = (blocks as usize * launches as usize).div_ceil(4);
        Ok(Preemptible {
            module: Module::load(context, PREEMPTIBLE_PTX.as_bytes())?,
            epoch: HostWords::new(context, 1)?,
            evicted: DeviceWords::new(context, 1)?,
            data: DeviceWords::new(context, blocks as usize * THREADS as usize)?,
            progress: DeviceWords::new(context, progress_words)?,
            blocks,
        })
    }

    /// Clears the progress bytes.
    pub(crate) fn clear_progress(&self) -> Result<(), ProbeError> {
        self.progress.fill(0)
    }

    /// The arguments of a launch; its index selects the progress bytes.
    pub(crate) fn args(&self, rounds: u32, launch: u32) -> [Arg; 6] {
        let progress = self.progress.address() + u64::from(launch) * u64::from(self.blocks);
        [
            Arg::U64(self.data.address()),
            Arg::U32(rounds),
            Arg::U64(self.epoch.address()),
            Arg::U64(self.evicted.address()),
            Arg::U64(progress),
            Arg::U32(0),
        ]
    }
}
