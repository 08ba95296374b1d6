//! The memory of an executor's device, as the daemon accesses it: shared with the executor, or only
//! through it.

use super::remote::RemoteMemory;
use atoll_core::{DeviceOffset, Epoch};
use atoll_device::DeviceError;
use atoll_device::space::{ConstantStore, EngineSpace};

/// Device memory.
#[derive(Debug)]
pub(super) enum ExecutorMemory {
    /// Owned by the daemon and mapped by both.
    Shared(EngineSpace),
    /// Owned by the executor.
    Remote(RemoteMemory),
}

impl ExecutorMemory {
    /// The constants, if the daemon holds them.
    pub(super) fn constants(&self) -> Option<&ConstantStore> {
        match self {
            ExecutorMemory::Shared(space) => Some(&space.constants),
            ExecutorMemory::Remote(_) => None,
        }
    }

    pub(super) fn constants_mut(&mut self) -> Option<&mut ConstantStore> {
        match self {
            ExecutorMemory::Shared(space) => Some(&mut space.constants),
            ExecutorMemory::Remote(_) => None,
        }
    }

    pub(super) fn write(&mut self, at: DeviceOffset, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            ExecutorMemory::Shared(space) => space.place(at).write(bytes),
            ExecutorMemory::Remote(memory) => memory.write(at, bytes),
        }
    }

    pub(super) fn read(&mut self, at: DeviceOffset, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            ExecutorMemory::Shared(space) => space.place(at).read(bytes),
            ExecutorMemory::Remote(memory) => memory.read(at, bytes),
        }
    }

    pub(super) fn copy(&mut self, from: DeviceOffset, to: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        match self {
            ExecutorMemory::Shared(space) => space.place(from).copy_to(space.place(to), bytes),
            ExecutorMemory::Remote(memory) => memory.copy(from, to, bytes),
        }
    }

    pub(super) fn fill(&mut self, at: DeviceOffset, value: u8, bytes: u64) -> Result<(), DeviceError> {
        match self {
            ExecutorMemory::Shared(space) => space.place(at).fill(value, bytes),
            ExecutorMemory::Remote(memory) => memory.fill(at, value, bytes),
        }
    }

    pub(super) fn give_back(&mut self, at: DeviceOffset, bytes: u64) -> Result<(), DeviceError> {
        match self {
            ExecutorMemory::Shared(space) => space.place(at).give_back(bytes),
            ExecutorMemory::Remote(memory) => memory.fill(at, 0, bytes),
        }
    }

    pub(super) fn store_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        match self {
            ExecutorMemory::Shared(space) => space.store_epoch(word, epoch),
            ExecutorMemory::Remote(memory) => memory.store_epoch(word, epoch),
        }
    }
}
