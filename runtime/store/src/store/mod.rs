//! The store: records which tenant may use which object, and where the bytes of an object are.

mod bundles;
mod graphs;
mod instances;
mod leases;
mod put;
mod read;
mod state;

pub use bundles::HeldBundle;

use crate::error::StoreError;
use crate::files::Files;
use crate::index::{Change, Index};
use crate::object::{Form, Holding, ObjectInfo, Usage};
use atoll_core::Tenant;
use atoll_sealed::{Digest, Sealed};
use state::{Counters, Object, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Folder of its files.
    pub folder: PathBuf,
    /// Bytes of objects kept in memory.
    pub memory_bytes: u64,
}

/// Objects and deployed functions, on disk and in memory. Shared by all threads of a daemon. Only
/// one daemon at a time can open a folder.
#[derive(Debug)]
pub struct Store {
    objects: Files,
    bundles: Files,
    memory_bytes: u64,
    /// The only lock. Contents of files are read and written without it. The index is written while
    /// holding it, so that index and maps change in the same order.
    state: Mutex<State>,
}

/// An object that is being read. Its bytes stay valid while this lives, even if the object is
/// removed.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The bytes.
    pub content: Arc<Sealed>,
    /// Their type and shape.
    pub form: Option<Form>,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Number of objects; an object of several tenants counts once.
    pub objects: u64,
    /// Their size on disk.
    pub disk_bytes: u64,
    /// Size of the objects that are in memory.
    pub memory_bytes: u64,
    /// Reads served from memory.
    pub found_in_memory: u64,
    /// Reads served from disk.
    pub read_from_disk: u64,
    /// Objects that were evicted from memory, or not kept there, for lack of room.
    pub left_memory: u64,
    /// Reads of objects whose file was missing or did not match its name.
    pub damaged: u64,
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Store {
    /// Opens or creates the store of a folder, and deletes incomplete files that a killed daemon
    /// left there.
    pub fn open(config: &StoreConfig) -> Result<Store, StoreError> {
        let objects = Files::create(config.folder.join("objects"), "")?;
        let bundles = Files::create(config.folder.join("functions"), ".kg")?;
        let mut index = Index::open(config.folder.join("index.redb"))?;
        index.keep_private()?;
        let contents = index.contents()?;
        let mut state = State {
            index,
            objects: BTreeMap::new(),
            tenants: BTreeMap::new(),
            deployments: contents.deployments.into_iter().collect(),
            graphs: contents.graphs.into_iter().collect(),
            instances: contents.instances.into_iter().collect(),
            held_bundles: BTreeMap::new(),
            reserved: BTreeMap::new(),
            residents: BTreeSet::new(),
            in_memory_bytes: 0,
            uses: 0,
            used: BTreeSet::new(),
            counters: Counters::default(),
        };
        let mut forgotten = Change::default();
        for (digest, bytes) in contents.objects {
            if objects.bytes(&digest) == Some(bytes) {
                state.objects.insert(digest, Object { bytes, holders: 0, memory: None, last_use: 0, real_time: false });
            } else {
                tracing::error!(%digest, "the file of an object is missing or has a different size; removing the \
                    object");
                forgotten.forget.push(digest);
            }
        }
        for (tenant, digest, holding) in contents.holdings {
            match state.objects.get_mut(&digest) {
                Some(object) => state.tenants.entry(tenant).or_default().take(digest, object, holding),
                None => forgotten.release.push((tenant, digest)),
            }
        }
        if !(forgotten.forget.is_empty() && forgotten.release.is_empty()) {
            state.index.apply(&forgotten)?;
        }
        objects.sweep(&state.objects.keys().copied().collect())?;
        bundles.sweep(&state.deployments.values().map(|deployment| deployment.bundle).collect())?;
        Ok(Store { objects, bundles, memory_bytes: config.memory_bytes, state: Mutex::new(state) })
    }

    /// Removes an object from a tenant's objects. Active reads continue. The bytes are deleted with
    /// the last tenant's reference.
    pub fn remove(&self, tenant: &Tenant, digest: Digest) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.holding(tenant, digest)?;
        let is_last = state.objects.get(&digest).is_none_or(|object| object.holders <= 1);
        let forget = if is_last { vec![digest] } else { Vec::new() };
        state.apply(Change { release: vec![(tenant.clone(), digest)], forget, ..Change::default() })?;
        state.drop_holding(tenant, digest);
        if is_last {
            state.drop_object(digest);
            self.objects.remove(&digest);
        }
        Ok(())
    }

    /// The objects of a tenant, by digest.
    pub fn list(&self, tenant: &Tenant) -> Vec<ObjectInfo> {
        let state = self.lock();
        let Some(owned) = state.tenants.get(tenant) else { return Vec::new() };
        let info = |(digest, holding): (&Digest, &Holding)| Some(state.objects.get(digest)?.info(*digest, holding));
        owned.holdings.iter().filter_map(info).collect()
    }

    /// Number and bytes of a tenant's objects.
    pub fn usage(&self, tenant: &Tenant) -> Usage {
        self.lock().tenants.get(tenant).map(|owned| owned.usage).unwrap_or_default()
    }

    /// The tenants that have objects.
    pub fn tenants(&self) -> Vec<Tenant> {
        self.lock().tenants.keys().cloned().collect()
    }

    /// Statistics of the store.
    pub fn statistics(&self) -> StoreStatistics {
        let state = self.lock();
        StoreStatistics {
            objects: state.objects.len() as u64,
            disk_bytes: state.objects.values().map(|object| object.bytes).sum(),
            memory_bytes: state.in_memory_bytes,
            found_in_memory: state.counters.found_in_memory,
            read_from_disk: state.counters.read_from_disk,
            left_memory: state.counters.left_memory,
            damaged: state.counters.damaged,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Store {
    /// Writes the times of last use that are not in the index yet.
    fn drop(&mut self) {
        let mut state = self.lock();
        if !state.used.is_empty() {
            // Ignores errors: only times of last use would be lost.
            let _ = state.apply(Change::default());
        }
    }
}
