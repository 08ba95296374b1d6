//! A launch as the GPU gets it: checked, with its kernel found and its device offsets translated to
//! addresses.

use super::module::{Kernel, Module};
use atoll_core::DeviceOffset;
use atoll_cuda::{CudaError, DeviceMemory, LaunchShape, TransferError};
use atoll_device::refusal::{self, checked_blocks, relocate};
use atoll_device::{LaunchRecord, ModuleId, ParamBlock};
use atoll_kgraph::preempt_params;
use std::collections::HashMap;

/// Why a launch was not put into its stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// It is invalid.
    #[error(transparent)]
    Invalid(#[from] refusal::Refusal),
    /// The driver refused it.
    #[error(transparent)]
    Driver(#[from] CudaError),
}

impl From<TransferError> for Refusal {
    fn from(error: TransferError) -> Refusal {
        match error {
            TransferError::OutOfBounds(_) => Refusal::Invalid(refusal::Refusal::PreemptWords),
            TransferError::Driver(error) => Refusal::Driver(error),
        }
    }
}

/// A parameter block.
#[derive(Debug)]
pub(super) struct Params {
    block: ParamBlock,
    bytes: usize,
}

impl Params {
    fn new(bytes: &[u8]) -> Params {
        Params { block: ParamBlock::from_bytes(bytes), bytes: bytes.len() }
    }

    pub(super) fn put_address(&mut self, slot: usize, address: u64) {
        self.block.set(slot, address);
    }

    /// Its 64-bit words, padded with zeros.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        (0..self.bytes.div_ceil(8)).filter_map(|slot| self.block.get(slot))
    }

    /// Its bytes, for the driver.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.block.to_bytes(self.bytes)
    }
}

/// A launch that is valid.
#[derive(Debug)]
pub(super) struct Checked<'m> {
    pub(super) kernel: &'m Kernel,
    pub(super) shape: LaunchShape,
    pub(super) params: Params,
    pub(super) blocks: u64,
    /// The slot of the evicted word, for launches that report early exits.
    pub(super) evicted_slot: Option<usize>,
}

/// The kernel of a launch.
pub(super) fn kernel<'m>(
    record: &LaunchRecord,
    modules: &'m HashMap<ModuleId, Module>,
) -> Result<&'m Kernel, refusal::Refusal> {
    let module = modules.get(&record.module).ok_or(refusal::Refusal::Module)?;
    module.kernel(record.kernel).ok_or(refusal::Refusal::Kernel)
}

/// Checks a launch and resolves its addresses. `find` returns the address of an epoch word that is
/// not in device memory.
pub(super) fn bind<'m>(
    record: &LaunchRecord,
    params: &[u8],
    kernel: &'m Kernel,
    memory: &DeviceMemory,
    shared_bytes_max: u32,
    find: impl Fn(DeviceOffset) -> Option<u64>,
) -> Result<Checked<'m>, refusal::Refusal> {
    let blocks = checked_blocks(record, params.len(), &kernel.facts, shared_bytes_max)?;
    // The driver accepts only the declared parameters.
    let mut params = Params::new(&params[..kernel.facts.params_bytes as usize]);
    let (base, are_absolute) = (memory.range(0, 0).unwrap_or_default(), record.address_slots.are_absolute());
    let offset_of = |value: u64| if are_absolute { value.checked_sub(base) } else { Some(value) };
    if let Some(offset) = kernel.facts.preempt_offset {
        slot_of(record, offset + preempt_params::EPOCH_WORD)?;
    }
    let tells = kernel.facts.preempt_offset.filter(|_| record.preemptible == 1);
    if let Some(offset) = tells {
        let progress = params.block.get(slot_of(record, offset + preempt_params::PROGRESS)?).and_then(offset_of);
        let progress = progress.ok_or(refusal::Refusal::PreemptWords)?;
        let words = [record.epoch_word.0, record.evicted_word.0];
        let are_words = words.into_iter().all(|word| word.is_multiple_of(4) && memory.range(word, 4).is_ok());
        if !are_words || memory.range(progress, blocks).is_err() {
            return Err(refusal::Refusal::PreemptWords);
        }
    }
    let evicted_slot = tells.map(|offset| slot_of(record, offset + preempt_params::EVICTED_WORD)).transpose()?;
    let bytes = params.bytes;
    let address = |offset: u64| find(DeviceOffset(offset)).or_else(|| memory.range(offset, 0).ok());
    relocate(&mut params.block, bytes, &record.address_slots, |value| address(offset_of(value)?))?;
    let shape = LaunchShape { grid: record.grid, block: kernel.facts.block, shared_bytes: record.shared_bytes };
    Ok(Checked { kernel, shape, params, blocks, evicted_slot })
}

/// The slot of an appended parameter, which is an address.
fn slot_of(record: &LaunchRecord, at: u32) -> Result<usize, refusal::Refusal> {
    let slot = (at / 8) as usize;
    let is_address = at.is_multiple_of(8) && record.address_slots.contains(slot);
    if is_address { Ok(slot) } else { Err(refusal::Refusal::PreemptWords) }
}

/// The name of a launch's kernel; empty if the launch names none.
pub(super) fn kernel_name(record: &LaunchRecord, modules: &HashMap<ModuleId, Module>) -> String {
    kernel(record, modules).map_or_else(|_| String::new(), |kernel| kernel.facts.name.clone())
}
