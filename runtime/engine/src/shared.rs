//! What the engine's thread and the threads of its clients share.

use crate::config::FunctionKey;
use crate::doorbell::Doorbell;
use crate::event::Command;
use crate::function::Function;
use crate::session::Sessions;
use atoll_device::DeviceInfo;
use crossbeam_channel::Receiver;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What the engine's thread and its clients share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) doorbell: Doorbell,
    pub(crate) device: DeviceInfo,
    /// Functions that can be found. Written by the engine's thread only; nothing else is locked
    /// while it is held.
    pub(crate) functions: RwLock<HashMap<FunctionKey, Arc<Function>>>,
    pub(crate) queue_capacity: usize,
    pub(crate) closed: AtomicBool,
    /// Set by the engine's thread, once and for good.
    pub(crate) lost: AtomicBool,
    pub(crate) ids: AtomicU64,
    pub(crate) sessions: Sessions,
}

/// What the engine's thread receives.
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

    /// The device failed for good.
    pub(crate) fn note_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }
}
