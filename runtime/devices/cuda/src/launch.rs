//! A launch as the GPU gets it: checked, with its kernel found and its device offsets translated to
//! addresses.

use super::module::{Kernel, Module};
use atoll_core::DeviceOffset;
use atoll_cuda::{CudaError, DeviceMemory, LaunchShape, TransferError};
use atoll_device::bind::{BoundLaunch, LaunchParams, bind_launch};
use atoll_device::{LaunchRecord, ModuleId, refusal};
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

/// A launch that is valid.
#[derive(Debug)]
pub(super) struct Checked<'m> {
    pub(super) kernel: &'m Kernel,
    pub(super) shape: LaunchShape,
    pub(super) params: LaunchParams,
    pub(super) blocks: u64,
    /// The slot of the evicted word, for launches that report early exits.
    pub(super) evicted_slot: Option<usize>,
    /// The slot of the fault word, for kernels that report faults there.
    pub(super) fault_slot: Option<usize>,
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
    let range = |at, bytes| memory.range(at, bytes).ok();
    let BoundLaunch { params, blocks, evicted_slot, fault_slot } =
        bind_launch(record, params, &kernel.facts, shared_bytes_max, range, find)?;
    let shape = LaunchShape { grid: record.grid, block: kernel.facts.block, shared_bytes: record.shared_bytes };
    Ok(Checked { kernel, shape, params, blocks, evicted_slot, fault_slot })
}

/// The name of a launch's kernel; empty if the launch names none.
pub(super) fn kernel_name(record: &LaunchRecord, modules: &HashMap<ModuleId, Module>) -> String {
    kernel(record, modules).map_or_else(|_| String::new(), |kernel| kernel.facts.name.clone())
}
