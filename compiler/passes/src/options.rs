//! Information for passes that is not part of the module.

use atoll_ptx::{Function, Name};
use std::collections::{BTreeMap, BTreeSet};

/// What happens to an access outside of its tenant's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FenceForm {
    /// The access is redirected to an address inside. For GPUs, where a trap would destroy the
    /// whole context, on a device that does not read fault words.
    #[default]
    Mask,
    /// The thread ends, and its launch fails, but not the context. For GPUs that tenants share.
    /// Addresses stay unchanged; a misaligned address counts as one outside, since it would destroy
    /// the context as well. Needs the pass `exit_on_trap`, which makes the thread end: until then it
    /// traps.
    Exit,
    /// The thread traps. Addresses stay unchanged, so the host target can still combine adjacent
    /// accesses into vector accesses, and compares the bounds once per warp. On the host a trap
    /// therefore costs much less than a mask.
    Trap,
}

/// Facts and choices for passes, by kernel name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Block shapes that kernels are launched with; `.reqntid` is used for kernels without an
    /// entry.
    pub blocks: BTreeMap<Name, [u32; 3]>,
    /// Kernels whose blocks may run again after they stopped midway, on any buffers they are
    /// launched with. Only their loops get checks.
    pub may_run_again: BTreeSet<Name>,
    /// How `fence_memory` bounds accesses to global memory.
    pub fence_form: FenceForm,
    /// Iterations between two checks of a loop; derived from the size of the loop if absent.
    pub check_every: Option<u32>,
}

impl PassOptions {
    /// The block shape of a kernel, if known.
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
