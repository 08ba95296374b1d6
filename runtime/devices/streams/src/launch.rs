//! A launch as the driver gets it: checked, with its kernel found and its device offsets translated
//! to addresses.

use crate::driver::{Driver, DriverError, LaunchShape};
use crate::module::{Kernel, Module};
use crate::slot::LaunchWords;
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use atoll_device::refusal::{self, checked_blocks, relocate};
use atoll_device::{LaunchRecord, ModuleId, ParamBlock};
use atoll_kgraph::{KernelFacts, preempt_params};
use std::collections::HashMap;

/// Why a launch was not put into its stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal<E: DriverError> {
    /// It is invalid.
    #[error("{0}")]
    Invalid(refusal::Refusal),
    /// The driver refused it.
    #[error("{0}")]
    Driver(E),
}

impl<E: DriverError> From<refusal::Refusal> for Refusal<E> {
    fn from(refusal: refusal::Refusal) -> Refusal<E> {
        Refusal::Invalid(refusal)
    }
}

/// A parameter block.
#[derive(Debug)]
struct Params {
    block: ParamBlock,
    bytes: usize,
}

/// A launch that is ready for the driver, except for the address of its evicted word.
#[derive(Debug)]
pub(crate) struct Bound<D: Driver> {
    pub(crate) launch: LaunchId,
    pub(crate) facts: KernelFacts,
    kernel: D::Kernel,
    shape: LaunchShape,
    params: Params,
    /// The slot of the evicted word, for launches that report early exits.
    pub(crate) evicted_slot: Option<usize>,
    /// The offset where the engine reads the evicted word.
    pub(crate) evicted_word: DeviceOffset,
    /// The offset of the epoch word, which identifies the task.
    pub(crate) task: DeviceOffset,
    /// The epoch under which it is issued.
    pub(crate) epoch: Epoch,
    /// Compute units that its blocks can occupy.
    pub(crate) units: u64,
    /// Whether its blocks may be killed and run again.
    pub(crate) may_be_killed: bool,
}

impl<D: Driver> Bound<D> {
    /// Puts it into a stream, with its words. A launch without blocks is skipped.
    pub(crate) fn put(&mut self, stream: &D::Stream, words: &LaunchWords<D>) -> Result<(), D::Error> {
        if self.shape.grid.contains(&0) {
            return Ok(());
        }
        if let Some(slot) = self.evicted_slot {
            self.params.block.set(slot, words.evicted_address());
        }
        let params = self.params.block.to_bytes(self.params.bytes);
        D::launch(&self.kernel, stream, self.shape, &params, words.trap_address())
    }
}

/// The memory and limits that launches are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The address of device memory.
    pub(crate) base: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) shared_bytes_max: u32,
    pub(crate) compute_units: u32,
}

impl Limits {
    /// The address of a range of device memory.
    fn range(&self, at: u64, bytes: u64) -> Option<u64> {
        at.checked_add(bytes).filter(|end| *end <= self.memory_bytes).map(|_| self.base + at)
    }
}

/// The kernel of a launch.
pub(crate) fn kernel<'m, D: Driver>(
    record: &LaunchRecord,
    modules: &'m HashMap<ModuleId, Module<D>>,
) -> Result<&'m Kernel<D>, refusal::Refusal> {
    let module = modules.get(&record.module).ok_or(refusal::Refusal::Module)?;
    module.kernel(record.kernel).ok_or(refusal::Refusal::Kernel)
}

/// Checks a launch and resolves its addresses. `find` returns the address of an epoch word that is
/// not in device memory.
pub(crate) fn bind<D: Driver>(
    record: &LaunchRecord,
    params: &[u8],
    kernel: &Kernel<D>,
    limits: Limits,
    find: impl Fn(DeviceOffset) -> Option<u64>,
) -> Result<Bound<D>, refusal::Refusal> {
    let facts = &kernel.facts;
    let blocks = checked_blocks(record, params.len(), facts, limits.shared_bytes_max)?;
    // The driver accepts only the declared parameters.
    let bytes = facts.params_bytes as usize;
    let mut block = ParamBlock::from_bytes(&params[..bytes]);
    let are_absolute = record.address_slots.are_absolute();
    let offset_of = |value: u64| if are_absolute { value.checked_sub(limits.base) } else { Some(value) };
    if let Some(offset) = facts.preempt_offset {
        slot_of(record, offset + preempt_params::EPOCH_WORD)?;
    }
    let tells = facts.preempt_offset.filter(|_| record.preemptible == 1);
    if let Some(offset) = tells {
        let progress = block.get(slot_of(record, offset + preempt_params::PROGRESS)?).and_then(offset_of);
        let progress = progress.ok_or(refusal::Refusal::PreemptWords)?;
        let words = [record.epoch_word.0, record.evicted_word.0];
        let are_words = words.into_iter().all(|word| word.is_multiple_of(4) && limits.range(word, 4).is_some());
        if !are_words || limits.range(progress, blocks).is_none() {
            return Err(refusal::Refusal::PreemptWords);
        }
    }
    let evicted_slot = tells.map(|offset| slot_of(record, offset + preempt_params::EVICTED_WORD)).transpose()?;
    let address = |offset: u64| find(DeviceOffset(offset)).or_else(|| limits.range(offset, 0));
    relocate(&mut block, bytes, &record.address_slots, |value| address(offset_of(value)?))?;
    Ok(Bound {
        launch: record.launch,
        facts: facts.clone(),
        kernel: kernel.handle.clone(),
        shape: LaunchShape { grid: record.grid, block: facts.block, shared_bytes: record.shared_bytes },
        params: Params { block, bytes },
        evicted_slot,
        evicted_word: record.evicted_word,
        task: record.epoch_word,
        epoch: record.epoch,
        units: blocks.min(u64::from(limits.compute_units)),
        may_be_killed: evicted_slot.is_some() && record.may_run_again == 1 && facts.keeps_progress(),
    })
}

/// The slot of an appended parameter, which is an address.
fn slot_of(record: &LaunchRecord, at: u32) -> Result<usize, refusal::Refusal> {
    let slot = (at / 8) as usize;
    let is_address = at.is_multiple_of(8) && record.address_slots.contains(slot);
    if is_address { Ok(slot) } else { Err(refusal::Refusal::PreemptWords) }
}

/// The name of a launch's kernel; empty if the launch names none.
pub(crate) fn kernel_name<D: Driver>(record: &LaunchRecord, modules: &HashMap<ModuleId, Module<D>>) -> String {
    kernel(record, modules).map_or_else(|_| String::new(), |kernel| kernel.facts.name.clone())
}
