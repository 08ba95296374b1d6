//! A launch that was checked and waits for its stream.

use super::completion::InRun;
use super::slot::LaunchWords;
use atoll_core::{DeviceOffset, LaunchId};
use atoll_cuda::{CudaError, GraphLaunch, Kernel, LaunchShape, Stream};
use atoll_device::ModuleId;
use atoll_device::bind::LaunchParams;

/// A launch that is ready for the driver, except for the addresses of its words.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) launch: LaunchId,
    pub(super) name: String,
    pub(super) kernel: Kernel,
    /// Module and kernel, to identify equal launches.
    pub(super) code: (ModuleId, u32),
    pub(super) shape: LaunchShape,
    pub(super) params: LaunchParams,
    pub(super) evicted_slot: Option<usize>,
    pub(super) fault_slot: Option<usize>,
    /// The offset where the engine reads the evicted word.
    pub(super) evicted_word: DeviceOffset,
    /// The offset of the epoch word, which identifies the task.
    pub(super) task: DeviceOffset,
    /// Compute units that its blocks can occupy.
    pub(super) units: u64,
}

impl Bound {
    /// Appends what identifies an equal launch: everything but its id and the addresses of its
    /// words.
    pub(super) fn add_to(&self, key: &mut Vec<u64>) {
        let LaunchShape { grid: [x, y, z], shared_bytes, .. } = self.shape;
        let [x, y, z] = [x, y, z].map(u64::from);
        key.extend([u64::from(self.code.0.0), u64::from(self.code.1), x, y, z, u64::from(shared_bytes)]);
        let word = |(at, word)| if [self.evicted_slot, self.fault_slot].contains(&Some(at)) { 0 } else { word };
        key.extend(self.params.words().enumerate().map(word));
    }

    /// The parameter block with the addresses of the words of launch `index`.
    pub(super) fn params_with(&mut self, words: &LaunchWords, index: usize) -> Vec<u8> {
        if let Some(at) = self.evicted_slot {
            self.params.put_address(at, words.evicted_address(index));
        }
        if let Some(at) = self.fault_slot {
            self.params.put_address(at, words.fault_address(index));
        }
        self.params.to_bytes()
    }

    /// The driver does not accept a launch without blocks, so it is skipped.
    fn has_blocks(&self) -> bool {
        !self.shape.grid.contains(&0)
    }

    pub(super) fn put(&mut self, stream: &Stream, words: &LaunchWords) -> Result<(), CudaError> {
        let params = self.params_with(words, 0);
        if self.has_blocks() { self.kernel.launch_with(stream, self.shape, &params) } else { Ok(()) }
    }

    pub(super) fn into_run(self) -> InRun {
        let Bound { launch, name: kernel, task, units, evicted_slot, evicted_word, fault_slot, .. } = self;
        let evicted_word = evicted_slot.map(|_| evicted_word);
        InRun { launch, kernel, task, units, evicted_word, reports_faults: fault_slot.is_some() }
    }

    /// The launch as a graph node with parameters; `None` if it has no blocks.
    pub(super) fn in_graph<'a>(&'a self, params: &'a Vec<u8>) -> Option<GraphLaunch<'a>> {
        self.has_blocks().then_some(GraphLaunch { kernel: &self.kernel, shape: self.shape, params })
    }
}
