//! The open sessions by number, for those who suspend or resume them.

use super::live::{Live, LiveError};
use crate::limits::CUDA_SUSPEND_TIME;
use atoll_engine::{Class, DeviceId, SessionId, Tenant};
use atoll_session::StoredCounts;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Pause before looking again whether the work of a session has ended.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);

/// The open sessions by number.
#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<u64, Arc<Entry>>>);

/// An open session.
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) tenant: Tenant,
    pub(crate) class: Class,
    /// Bytes of its memory.
    pub(crate) bytes: u64,
    /// Its stored functions.
    stored: Mutex<StoredCounts>,
    /// Its number in the engine of its device.
    at: Arc<AtomicU64>,
    /// The part on a device, until the session ends. Locked while work of the program runs.
    live: Mutex<Option<Live>>,
}

impl Registry {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session.
    pub(super) fn add(&self, (number, bytes): (u64, u64), tenant: &Tenant, live: Live) -> Arc<Entry> {
        let (tenant, class, at) = (tenant.clone(), live.class, live.at.clone());
        let stored = Mutex::default();
        let entry = Arc::new(Entry { number, tenant, class, bytes, stored, at, live: Mutex::new(Some(live)) });
        self.all().insert(number, entry.clone());
        entry
    }

    /// Ends a session: its work is over, and nothing of it is left on a device.
    pub(super) fn end(&self, entry: &Entry) {
        self.all().remove(&entry.number);
        let live = entry.live().take();
        drop(live);
    }

    /// A session.
    pub(crate) fn find(&self, number: u64) -> Option<Arc<Entry>> {
        self.all().get(&number).cloned()
    }

    /// All sessions, by number.
    pub(crate) fn list(&self) -> Vec<Arc<Entry>> {
        self.all().values().cloned().collect()
    }
}

impl Entry {
    fn live(&self) -> MutexGuard<'_, Option<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the part on a device. Waits while others use it. For the thread of the session.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Live) -> R) -> R {
        act(self.live().as_mut().expect("the thread of a session ends it last"))
    }

    /// Its stored functions.
    pub(crate) fn stored(&self) -> StoredCounts {
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the counts of its stored functions. Returns the former ones.
    pub(super) fn set_stored(&self, counts: StoredCounts) -> StoredCounts {
        std::mem::replace(&mut *self.stored.lock().unwrap_or_else(PoisonError::into_inner), counts)
    }

    /// Its session in the engine of its device.
    pub(crate) fn session(&self) -> SessionId {
        SessionId(self.at.load(Relaxed))
    }

    /// Its device.
    pub(crate) fn device(&self) -> DeviceId {
        DeviceId::of_id(self.session().0)
    }

    /// Brings the session to a device, by default the one that it is or was on. Blocks.
    pub(crate) fn resume(&self, device: Option<DeviceId>) -> Result<(), LiveError> {
        let begin = Instant::now();
        let mut live = loop {
            match self.live.try_lock() {
                Ok(live) => break live,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if begin.elapsed() >= CUDA_SUSPEND_TIME => return Err(LiveError::Busy),
                Err(TryLockError::WouldBlock) => std::thread::sleep(BUSY_INTERVAL),
            }
        };
        live.as_mut().ok_or(LiveError::Gone)?.resume_on(device)
    }
}
