//! State of padding: blocks of several tasks in one launch.

use super::pad_modules::PadModules;
use crate::padding::LoadedPadding;
use crate::padding_thread::PaddingThread;
use atoll_core::{DeviceOffset, Epoch, LaunchId, PadShape, TaskId};
use std::collections::HashMap;
use std::sync::Arc;

/// State of padding.
pub(super) struct PaddingState {
    pub(super) modules: PadModules,
    /// Blocks to co-schedule in the launch that is issued next.
    pub(super) pads: Vec<Pad>,
    /// Shared launches in flight.
    pub(super) shared: HashMap<LaunchId, SharedLaunch>,
    /// Tasks that cannot continue, because blocks of them may have been stopped midway.
    pub(super) uncertain: Vec<TaskId>,
}

/// Blocks of a task that are co-scheduled in another task's launch.
#[derive(Clone, Copy)]
pub(super) struct Pad {
    pub(super) task: TaskId,
    pub(super) step: u32,
    pub(super) first: u32,
    pub(super) shape: PadShape,
    pub(super) epoch: Epoch,
}

/// A launch that several tasks share.
pub(super) struct SharedLaunch {
    /// Keeps the module on the device.
    pub(super) _module: Arc<LoadedPadding>,
    /// The evicted word of the real-time launch.
    pub(super) evicted_word: DeviceOffset,
    /// Blocks of the real-time launch, which come first.
    pub(super) blocks: u32,
    pub(super) pads: Vec<Pad>,
    /// Each pad's share of the launch's time, in parts of `WHOLE` (`padding.rs`).
    pub(super) shares: Vec<u64>,
}

impl PaddingState {
    pub(super) fn new(thread: Option<PaddingThread>) -> PaddingState {
        PaddingState {
            modules: PadModules::new(thread),
            pads: Vec::new(),
            shared: HashMap::new(),
            uncertain: Vec::new(),
        }
    }
}

impl SharedLaunch {
    /// The pad that a block of the launch belongs to (`None` for the real-time task), and the
    /// block's index there.
    pub(super) fn owner(&self, block: u32) -> Option<(Option<Pad>, u32)> {
        let Some(mut at) = block.checked_sub(self.blocks) else { return Some((None, block)) };
        for pad in &self.pads {
            match at.checked_sub(pad.shape.blocks) {
                None => return Some((Some(*pad), pad.first + at)),
                Some(behind) => at = behind,
            }
        }
        None
    }
}
