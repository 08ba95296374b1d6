//! Device memory that a client has exported, and a device of the daemon that opens it.

use atoll_engine::{ImportError, ImportId, Imports, MemoryHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The memory of a client. A handle repeats one byte, which names an allocation.
#[derive(Debug, Default)]
pub(crate) struct ClientMemory {
    allocations: Mutex<BTreeMap<u8, Vec<u8>>>,
    open: Mutex<BTreeSet<ImportId>>,
    is_away: AtomicBool,
}

impl ClientMemory {
    /// Allocates zeroed memory.
    pub(crate) fn allocate(&self, name: u8, bytes: usize) {
        self.allocations.lock().unwrap().insert(name, vec![0; bytes]);
    }

    pub(crate) fn free(&self, name: u8) {
        self.allocations.lock().unwrap().remove(&name);
    }

    pub(crate) fn put(&self, name: u8, at: usize, bytes: &[u8]) {
        self.allocations.lock().unwrap().get_mut(&name).unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn get(&self, name: u8, at: usize, count: usize) -> Vec<u8> {
        self.allocations.lock().unwrap()[&name][at..at + count].to_vec()
    }

    /// Number of imports that are open.
    pub(crate) fn opened(&self) -> usize {
        self.open.lock().unwrap().len()
    }

    /// Sets whether the executor of the device is being replaced. The new one opens nothing by itself.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
        self.open.lock().unwrap().clear();
    }

    fn with<T>(
        &self,
        id: ImportId,
        handle: &MemoryHandle,
        work: impl FnOnce(&mut Vec<u8>) -> Option<T>,
    ) -> Result<T, ImportError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(ImportError::Unavailable("the executor is away".into()));
        }
        let mut allocations = self.allocations.lock().unwrap();
        let name = handle.0[0];
        let memory = allocations.get_mut(&name).filter(|_| handle.0 == [name; 64]);
        let memory = memory.ok_or_else(|| ImportError::Refused("there is no such memory".into()))?;
        self.open.lock().unwrap().insert(id);
        work(memory).ok_or_else(|| ImportError::Refused("outside".into()))
    }
}

impl Imports for ClientMemory {
    fn ordinal(&self) -> u32 {
        3
    }

    fn open(&self, id: ImportId, handle: &MemoryHandle) -> Result<u64, ImportError> {
        self.with(id, handle, |memory| Some(memory.len() as u64))
    }

    fn read(&self, id: ImportId, handle: &MemoryHandle, at: u64, to: &mut [u8]) -> Result<(), ImportError> {
        self.with(id, handle, |memory| {
            to.copy_from_slice(memory.get(at as usize..)?.get(..to.len())?);
            Some(())
        })
    }

    fn write(&self, id: ImportId, handle: &MemoryHandle, at: u64, from: &[u8]) -> Result<(), ImportError> {
        self.with(id, handle, |memory| {
            memory.get_mut(at as usize..)?.get_mut(..from.len())?.copy_from_slice(from);
            Some(())
        })
    }

    fn close(&self, id: ImportId) {
        self.open.lock().unwrap().remove(&id);
    }
}
