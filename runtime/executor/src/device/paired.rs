//! What a pair of executors needs of each; see `pair`.

use super::ExecutorDevice;
use crate::memory::ExecutorMemory;
use crate::remote::RemoteMemory;
use atoll_core::{DeviceOffset, Epoch};

impl ExecutorDevice {
    /// The memory that belongs to the executor, if its device has memory of its own.
    pub(crate) fn remote_memory(&mut self) -> Option<&mut RemoteMemory> {
        if let ExecutorMemory::Remote(memory) = &mut self.memory { Some(memory) } else { None }
    }

    /// A handle of its memory, once the executor runs, if it can share its memory.
    pub(crate) fn shared_memory(&self) -> Option<Vec<u8>> {
        self.executor.memory()
    }

    /// The value of an epoch word that is bound to a shared word.
    pub(crate) fn epoch(&self, word: DeviceOffset) -> Option<Epoch> {
        if let ExecutorMemory::Remote(memory) = &self.memory { memory.epoch(word) } else { None }
    }

    /// Raises an epoch word if it is bound to a shared word.
    pub(crate) fn store_bound_epoch(&self, word: DeviceOffset, epoch: Epoch) {
        if let ExecutorMemory::Remote(memory) = &self.memory {
            memory.store_bound_epoch(word, epoch);
        }
    }
}
