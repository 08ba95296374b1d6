//! What every device checks of a launch before it runs it.

use crate::params::{AddressSlots, PARAMS_BYTES_MAX, ParamBlock};
use crate::record::LaunchRecord;
use atoll_kgraph::KernelFacts;

/// Why a launch cannot be run. The engine checks all of this before; so it is a bug of ours, or a
/// peer that broke the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The launch names no module that is loaded.
    #[error("no such module is loaded")]
    Module,
    /// It names no kernel of its module.
    #[error("the module has no such kernel")]
    Kernel,
    /// Its parameter block has another size than the kernel's, or is too large for any.
    #[error("{bytes} bytes of parameters, where the kernel has {declared} and {PARAMS_BYTES_MAX} are the most")]
    Params {
        /// Bytes of the parameter block.
        bytes: usize,
        /// Bytes that the kernel declares.
        declared: u32,
    },
    /// It marks an address that is none.
    #[error("an address slot lies outside the parameter block or holds no offset of the device's memory")]
    Address,
    /// Its grid has more than 2⁶⁴ blocks.
    #[error("more blocks than can be counted")]
    Grid,
    /// It asks for too little or too much shared memory.
    #[error("less shared memory than the kernel wants or more than a compute unit has")]
    Shared,
    /// Its preemption parameters name memory that is not there.
    #[error("the epoch word, evicted word or progress map lies outside the device's memory")]
    PreemptWords,
}

/// Checks a launch against its kernel, and counts its blocks.
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

/// Puts addresses in place of the offsets that a parameter block holds. `address` says which
/// address an offset has, or, where the block holds addresses, whether that is one.
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
