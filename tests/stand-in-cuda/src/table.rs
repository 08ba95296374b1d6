//! Handles: numbers that identify objects and are never reused.

use crate::status::Status;
use atoll_cuda_api::types::DriverHandle;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// A handle, as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Handle(pub(crate) u64);

/// The next handle. Handles look like unmapped addresses, so that a program that dereferences one
/// faults.
static NEXT: AtomicU64 = AtomicU64::new(0x5c0d_a000_0000_0000);

impl Handle {
    /// A new handle.
    pub(crate) fn fresh() -> Handle {
        Handle(NEXT.fetch_add(16, Relaxed))
    }

    /// A handle from the program.
    pub(crate) fn of(handle: impl DriverHandle) -> Handle {
        Handle(handle.bits())
    }

    /// The handle for the program.
    pub(crate) fn raw<H: DriverHandle>(self) -> H {
        H::from_bits(self.0)
    }
}

/// Objects of one kind, by handle.
#[derive(Debug)]
pub(crate) struct Table<T>(RwLock<HashMap<Handle, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RwLock::default())
    }
}

impl<T> Table<T> {
    /// Adds an object.
    pub(crate) fn put(&self, handle: Handle, object: Arc<T>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    }

    /// The object of a handle from the program.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<T>, Status> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned().ok_or(Status::InvalidHandle)
    }

    /// Removes an object.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Status> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle).ok_or(Status::InvalidHandle)
    }

    /// Removes and returns all objects that satisfy a predicate.
    pub(crate) fn drain(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.extract_if(|_, object| is_meant(object)).map(|(_, object)| object).collect()
    }

    /// An object that satisfies a predicate.
    pub(crate) fn find(&self, is_meant: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).values().find(|object| is_meant(object)).cloned()
    }

    /// The handle of an object.
    pub(crate) fn handle_of(&self, object: &Arc<T>) -> Option<Handle> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.iter().find(|(_, known)| Arc::ptr_eq(known, object)).map(|(handle, _)| *handle)
    }
}
