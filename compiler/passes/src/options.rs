//! What passes are told about a module that does not stand in it.

use atoll_ptx::{Function, Name};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of an access that lies outside of its tenant's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FenceForm {
    /// It lands somewhere inside. Nobody else notices, which is what GPUs ask for, where a trap
    /// ends the whole context.
    #[default]
    Mask,
    /// The thread traps. Addresses stay what they are, so that the host target, which turns
    /// neighbouring accesses into vectors, still sees neighbours; it asks for the bounds of a whole
    /// warp at once. There it costs a fraction of a mask.
    Trap,
}

/// Facts and choices for passes, by kernel name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Block shapes that kernels are launched with. Where there is none, `.reqntid` counts.
    pub blocks: BTreeMap<Name, [u32; 3]>,
    /// Kernels whose blocks may be run again after they stopped midway, for whatever buffers they
    /// are launched on. Without that fact no loop gets a check.
    pub may_run_again: BTreeSet<Name>,
    /// How `fence_memory` bounds accesses to global memory.
    pub fence_form: FenceForm,
    /// How many rounds of a loop lie between two checks; chosen by the size of the loop where
    /// absent.
    pub check_every: Option<u32>,
}

impl PassOptions {
    /// The block shape of a kernel, where it is known.
    pub(crate) fn block_of(&self, kernel: &Function) -> Option<[u32; 3]> {
        self.blocks.get(&kernel.name).copied().or_else(|| required_shape(kernel))
    }
}

/// `.reqntid 16, 4`
fn required_shape(kernel: &Function) -> Option<[u32; 3]> {
    let directive = kernel.attributes.iter().find(|a| a.name == "reqntid")?;
    let extents: Option<Vec<u32>> = directive.arguments.iter().map(|a| a.parse().ok()).collect();
    let extents = extents?;
    let extent = |axis: usize| extents.get(axis).copied().unwrap_or(1);
    Some([extent(0), extent(1), extent(2)])
}
