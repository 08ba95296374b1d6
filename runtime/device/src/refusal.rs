//! The checks of a launch that all devices make before they run it.

use crate::params::{AddressSlots, PARAMS_BYTES_MAX, ParamBlock};
use crate::record::LaunchRecord;
use atoll_kgraph::KernelFacts;

/// Why a launch cannot be run. The engine makes the same checks earlier, so a refusal means a bug
/// in Atoll or a peer that wrote to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The launch names a module that is not loaded.
    #[error("no such module is loaded")]
    Module,
    /// The launch names a kernel that its module does not have.
    #[error("the module has no such kernel")]
    Kernel,
    /// The parameter block is smaller than the kernel declares, or larger than any block may be.
    #[error("{bytes} bytes of parameters; the kernel declares {declared}, and {PARAMS_BYTES_MAX} are the most")]
    Params {
        /// Bytes of the parameter block.
        bytes: usize,
        /// Bytes that the kernel declares.
        declared: u32,
    },
    /// A slot that is marked as an address lies outside the parameter block or holds no valid
    /// address.
    #[error("an address slot lies outside the parameter block or holds no valid address")]
    Address,
    /// The grid has 2⁶⁴ or more blocks.
    #[error("the grid has 2^64 or more blocks")]
    Grid,
    /// The launch asks for too little or too much shared memory.
    #[error("less shared memory than the kernel declares or more than a compute unit has")]
    Shared,
    /// The preemption parameters are no addresses, or not in the device's memory.
    #[error("the launch names no epoch word, evicted word and progress map in the device's memory")]
    PreemptWords,
    /// The parameter for the address of the fault word lies outside the parameter block.
    #[error("the kernel's parameters have no place for the address of the fault word")]
    FaultWord,
}

/// Checks a launch against its kernel. Returns the number of blocks in its grid.
pub fn checked_blocks(
    record: &LaunchRecord,
    params_bytes: usize,
    facts: &KernelFacts,
    shared_bytes_max: u32,
) -> Result<u64, Refusal> {
    let blocks = record.grid.iter().try_fold(1u64, |n, g| n.checked_mul(u64::from(*g))).ok_or(Refusal::Grid)?;
    if params_bytes < facts.params_bytes as usize || params_bytes > PARAMS_BYTES_MAX {
        return Err(Refusal::Params { bytes: params_bytes, declared: facts.params_bytes });
    }
    if record.shared_bytes < facts.shared_bytes || record.shared_bytes > shared_bytes_max {
        return Err(Refusal::Shared);
    }
    Ok(blocks)
}

/// Replaces the offsets in a parameter block by addresses. `address` translates an offset, or
/// checks an address if the block holds addresses; `None` refuses the launch.
pub fn relocate(
    params: &mut ParamBlock,
    params_bytes: usize,
    slots: &AddressSlots,
    address: impl Fn(u64) -> Option<u64>,
) -> Result<(), Refusal> {
    for slot in slots.iter() {
        let value = params.get(slot).filter(|_| (slot + 1) * 8 <= params_bytes).ok_or(Refusal::Address)?;
        params.set(slot, address(value).ok_or(Refusal::Address)?);
    }
    Ok(())
}
