//! A launch as the driver gets it: checked, with its kernel found and its device offsets translated
//! to addresses.

use crate::driver::{Driver, DriverError, LaunchShape};
use crate::module::{Kernel, Module};
use crate::slot::Slot;
use atoll_core::{DeviceOffset, Epoch, LaunchId};
use atoll_device::bind::{BoundLaunch, LaunchParams, bind_launch};
use atoll_device::{LaunchRecord, ModuleId, refusal};
use atoll_kgraph::KernelFacts;
use std::collections::HashMap;
use std::sync::Arc;

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

/// A launch that is ready for the driver, except for the address of its evicted word.
#[derive(Debug)]
pub(crate) struct Bound<D: Driver> {
    pub(crate) launch: LaunchId,
    pub(crate) facts: KernelFacts,
    kernel: D::Kernel,
    shape: LaunchShape,
    params: LaunchParams,
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
    /// Gives its slot a print buffer, if it needs one.
    pub(crate) fn prepare(&self, context: &Arc<D::Context>, slot: &mut Slot<D>) -> Result<(), D::Error> {
        if slot.print.is_none() {
            slot.print = D::print_buffer(context, &self.kernel)?;
        }
        Ok(())
    }

    /// Puts it into a stream, with its slot. A launch without blocks is skipped.
    pub(crate) fn put(&mut self, stream: &D::Stream, slot: &Slot<D>) -> Result<(), D::Error> {
        if self.shape.grid.contains(&0) {
            return Ok(());
        }
        if let Some(evicted) = self.evicted_slot {
            self.params.put_address(evicted, slot.words.evicted_address());
        }
        let params = self.params.to_bytes();
        D::launch(&self.kernel, stream, self.shape, &params, slot.records())
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
    let (facts, range) = (&kernel.facts, |at, bytes| limits.range(at, bytes));
    let BoundLaunch { params, blocks, evicted_slot, .. } =
        bind_launch(record, params, facts, limits.shared_bytes_max, range, find)?;
    Ok(Bound {
        launch: record.launch,
        facts: facts.clone(),
        kernel: kernel.handle.clone(),
        shape: LaunchShape { grid: record.grid, block: facts.block, shared_bytes: record.shared_bytes },
        params,
        evicted_slot,
        evicted_word: record.evicted_word,
        task: record.epoch_word,
        epoch: record.epoch,
        units: blocks.min(u64::from(limits.compute_units)),
        may_be_killed: evicted_slot.is_some() && record.may_run_again == 1 && facts.keeps_progress(),
    })
}

/// The name of a launch's kernel; empty if the launch names none.
pub(crate) fn kernel_name<D: Driver>(record: &LaunchRecord, modules: &HashMap<ModuleId, Module<D>>) -> String {
    kernel(record, modules).map_or_else(|_| String::new(), |kernel| kernel.facts.name.clone())
}
