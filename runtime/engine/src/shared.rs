//! State shared by the engine's thread and its clients' threads.

use crate::config::FunctionKey;
use crate::decoding::StringThreads;
use crate::doorbell::Doorbell;
use crate::event::Command;
use crate::function::Function;
use crate::residency::ResidencyChanges;
use crate::retained::OutputRequests;
use crate::session::Sessions;
use atoll_device::{DeviceInfo, Imports};
use crossbeam_channel::Receiver;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// State shared by the engine's thread and its clients' threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) device: DeviceInfo,
    pub(crate) imports: Option<Arc<dyn Imports>>,
    /// Published functions. Written by the engine's thread only; no other lock is taken while it is
    /// held.
    pub(crate) functions: RwLock<HashMap<FunctionKey, Arc<Function>>>,
    pub(crate) queue_capacity: usize,
    pub(crate) closed: AtomicBool,
    /// Set by the engine's thread, and never cleared.
    pub(crate) lost: AtomicBool,
    pub(crate) ids: AtomicU64,
    /// Bytes of device memory that may be used.
    pub(crate) memory_bytes: u64,
    pub(crate) residency: ResidencyChanges,
    /// Closed when the device is lost, or the engine has stopped.
    pub(crate) outputs: Arc<OutputRequests>,
    pub(crate) sessions: Sessions,
    /// Runs if a function with strings was loaded.
    pub(crate) decoding: Arc<StringThreads>,
}

/// The receiving ends of the command channels.
pub(crate) struct Inbox {
    pub(crate) urgent: Receiver<Command>,
    pub(crate) normal: Receiver<Command>,
}

impl Shared {
    pub(crate) fn publish(&self, function: &Arc<Function>) {
        self.functions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(function.key.clone(), Arc::clone(function));
    }

    pub(crate) fn withdraw(&self, key: &FunctionKey) {
        self.functions.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    pub(crate) fn find(&self, key: &FunctionKey) -> Option<Arc<Function>> {
        self.functions.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Marks the device as lost, permanently.
    pub(crate) fn note_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.outputs.close();
    }

    /// Ends what outlives the engine's thread, which has ended.
    pub(crate) fn stop(&self) {
        self.outputs.close();
        self.decoding.stop();
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}

/// Marks the device as lost if the thread that owns it panics.
pub(crate) struct PanicGuard(pub(crate) Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.note_lost();
        }
    }
}
