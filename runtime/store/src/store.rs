//! The store itself: who may have what, and where it is.

use crate::deployment::{Deployment, DeploymentKey};
use crate::error::StoreError;
use crate::files::Files;
use crate::index::{Change, Index};
use crate::limits::TENANT_OBJECTS_MAX;
use crate::object::{Form, Holding, Limit, ObjectInfo, Quota, Usage};
use atoll_core::{Class, Tenant};
use atoll_sealed::{Digest, Sealed};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Where it keeps its files.
    pub folder: PathBuf,
    /// Bytes of objects that it keeps in memory.
    pub memory_bytes: u64,
}

/// Objects and deployed functions, on the disk and in memory. Shared by all threads of a daemon;
/// one daemon has a folder.
#[derive(Debug)]
pub struct Store {
    objects: Files,
    bundles: Files,
    memory_bytes: u64,
    /// The only lock. Files are written and read outside of it; the index is written under it, so
    /// that its order is that of the maps.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    index: Index,
    objects: BTreeMap<Digest, Object>,
    shelves: BTreeMap<Tenant, Shelf>,
    deployments: BTreeMap<DeploymentKey, Deployment>,
    /// How often each bundle is held that somebody deploys just now.
    held_bundles: BTreeMap<Digest, usize>,
    /// What is in memory: best-effort first, then by last use.
    residents: BTreeSet<(bool, u64, Digest)>,
    /// Their bytes.
    in_memory_bytes: u64,
    /// Counts uses, so that what was not used for longest can be told.
    uses: u64,
    /// Holdings whose last use the index does not know yet; written with the next change.
    used: BTreeSet<(Tenant, Digest)>,
    counters: Counters,
}

/// A content, whoever has a right to it.
#[derive(Debug)]
struct Object {
    bytes: u64,
    holders: u64,
    memory: Option<Arc<Sealed>>,
    last_use: u64,
    /// For the most demanding of its holders.
    real_time: bool,
}

/// What a tenant has a right to.
#[derive(Debug, Default)]
struct Shelf {
    holdings: BTreeMap<Digest, Holding>,
    usage: Usage,
}

/// An object that is to be put.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    class: Class,
    bytes: u64,
    form: Option<&'a Form>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    found_in_memory: u64,
    read_from_disk: u64,
    left_memory: u64,
    damaged: u64,
}

/// An object that is being read: its bytes stay for as long as this lives, whatever becomes of its
/// name.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its bytes.
    pub content: Arc<Sealed>,
    /// How to read them.
    pub form: Option<Form>,
}

/// What a store tells about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStatistics {
    /// Contents, each counted once.
    pub objects: u64,
    /// Their bytes on the disk.
    pub disk_bytes: u64,
    /// Those of them that are in memory.
    pub memory_bytes: u64,
    /// Reads that found the content in memory.
    pub found_in_memory: u64,
    /// Reads that had to go to the disk.
    pub read_from_disk: u64,
    /// Contents that had to leave memory for others.
    pub left_memory: u64,
    /// Files that did not hold what their names say.
    pub damaged: u64,
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Store {
    /// Opens or makes the store of a folder, and sweeps what an earlier daemon left when it was
    /// killed.
    pub fn open(config: &StoreConfig) -> Result<Store, StoreError> {
        let objects = Files::create(config.folder.join("objects"), "")?;
        let bundles = Files::create(config.folder.join("functions"), ".kg")?;
        let mut index = Index::open(config.folder.join("index.redb"))?;
        index.keep_private()?;
        let contents = index.contents()?;
        let mut state = State {
            index,
            objects: BTreeMap::new(),
            shelves: BTreeMap::new(),
            deployments: contents.deployments.into_iter().collect(),
            held_bundles: BTreeMap::new(),
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
                tracing::error!(%digest, "the file of an object is gone or has another size; the object is forgotten");
                forgotten.forget.push(digest);
            }
        }
        for (tenant, digest, holding) in contents.holdings {
            match state.objects.get_mut(&digest) {
                Some(object) => state.shelves.entry(tenant).or_default().take(digest, object, holding),
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

    /// Keeps an object for a tenant and gives its name. Once this returns, the object survives the
    /// daemon. Putting it again changes its class and form only.
    ///
    /// A tenant that has no right to the content waits for its bytes to be written, also where
    /// another tenant has the same: that somebody else has something is nobody's business.
    pub fn put(
        &self,
        tenant: &Tenant,
        quota: &Quota,
        class: Class,
        form: Option<Form>,
        content: Sealed,
    ) -> Result<Digest, StoreError> {
        let bytes = content.bytes();
        let digest = content.digest().map_err(|source| StoreError::Io {
            what: "cannot read",
            path: "the object".into(),
            source,
        })?;
        let wanted = Wanted { class, bytes, form: form.as_ref() };
        if self.lock().renew(tenant, quota, digest, wanted)? {
            return Ok(digest);
        }
        let staged = self.objects.stage(&content)?;
        let mut state = self.lock();
        // Another thread of the tenant may have been faster, with this object or with others.
        if state.renew(tenant, quota, digest, wanted)? {
            return Ok(digest);
        }
        self.objects.publish(staged)?;
        let now = now_s();
        let holding = Holding { class, form, created_s: now, used_s: now };
        let change = Change {
            put: vec![(digest, bytes)],
            hold: vec![(tenant.clone(), digest, holding.clone())],
            ..Change::default()
        };
        if let Err(error) = state.apply(change) {
            if !state.objects.contains_key(&digest) {
                self.objects.remove(&digest);
            }
            return Err(error);
        }
        let State { objects, shelves, .. } = &mut *state;
        let object =
            objects.entry(digest).or_insert(Object { bytes, holders: 0, memory: None, last_use: 0, real_time: false });
        shelves.entry(tenant.clone()).or_default().take(digest, object, holding);
        state.remember(digest, Arc::new(content), self.memory_bytes);
        Ok(digest)
    }

    /// Reads an object of a tenant.
    pub fn lease(&self, tenant: &Tenant, digest: Digest) -> Result<Lease, StoreError> {
        let form = {
            let mut state = self.lock();
            let holding = state.holding(tenant, digest)?;
            holding.used_s = now_s();
            let form = holding.form.clone();
            state.used.insert((tenant.clone(), digest));
            if let Some(content) = state.in_memory(digest) {
                return Ok(Lease { content, form });
            }
            form
        };
        let read = self.objects.read(&digest)?;
        let mut state = self.lock();
        // It may have been removed while it was read.
        state.holding(tenant, digest)?;
        match read {
            Some(content) => {
                state.counters.read_from_disk += 1;
                let content = Arc::new(content);
                state.remember(digest, Arc::clone(&content), self.memory_bytes);
                Ok(Lease { content, form })
            }
            None => {
                tracing::error!(%digest, "the file of an object does not hold what its name says; the object is forgotten");
                state.forget(digest)?;
                self.objects.remove(&digest);
                Err(StoreError::Damaged(digest))
            }
        }
    }

    /// Gives up a tenant's right to an object. Who reads it goes on; its bytes go with the last
    /// right to it.
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

    /// The objects of a tenant, by name.
    pub fn list(&self, tenant: &Tenant) -> Vec<ObjectInfo> {
        let state = self.lock();
        let Some(shelf) = state.shelves.get(tenant) else { return Vec::new() };
        let info = |(digest, holding): (&Digest, &Holding)| {
            let object = state.objects.get(digest)?;
            Some(ObjectInfo {
                digest: *digest,
                bytes: object.bytes,
                class: holding.class,
                form: holding.form.clone(),
                created_s: holding.created_s,
                used_s: holding.used_s,
                in_memory: object.memory.is_some(),
            })
        };
        shelf.holdings.iter().filter_map(info).collect()
    }

    /// What a tenant has.
    pub fn usage(&self, tenant: &Tenant) -> Usage {
        self.lock().shelves.get(tenant).map(|shelf| shelf.usage).unwrap_or_default()
    }

    /// What the store tells about itself.
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

    // Deployed functions.

    /// Writes the file of a bundle. It stays as long as it is held or a function is deployed from
    /// it.
    pub fn write_bundle(&self, content: &Sealed) -> Result<HeldBundle<'_>, StoreError> {
        let staged = self.bundles.stage(content)?;
        let held = self.hold_bundle(staged.digest);
        // Other functions may be deployed from the same bundle; what they have mapped stays theirs.
        self.bundles.publish(staged)?;
        Ok(held)
    }

    fn hold_bundle(&self, digest: Digest) -> HeldBundle<'_> {
        *self.lock().held_bundles.entry(digest).or_default() += 1;
        HeldBundle { store: self, digest }
    }

    /// Removes the file of a bundle that nobody holds and nothing is deployed from.
    fn remove_unused_bundle(&self, state: &State, digest: Digest) {
        let is_deployed = state.deployments.values().any(|deployment| deployment.bundle == digest);
        if !is_deployed && !state.held_bundles.contains_key(&digest) {
            self.bundles.remove(&digest);
        }
    }

    /// Where the bundle of a function is.
    pub fn bundle_path(&self, digest: &Digest) -> PathBuf {
        self.bundles.path(digest)
    }

    /// Remembers a function, in the place of one that has its name.
    pub fn deploy(&self, key: DeploymentKey, deployment: Deployment) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.apply(Change { deploy: vec![(key.clone(), deployment.clone())], ..Change::default() })?;
        if let Some(old) = state.deployments.insert(key, deployment) {
            self.remove_unused_bundle(&state, old.bundle);
        }
        Ok(())
    }

    /// Forgets a function. Whether there was one.
    pub fn withdraw(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        let mut state = self.lock();
        if !state.deployments.contains_key(key) {
            return Ok(false);
        }
        state.apply(Change { withdraw: vec![key.clone()], ..Change::default() })?;
        if let Some(old) = state.deployments.remove(key) {
            self.remove_unused_bundle(&state, old.bundle);
        }
        Ok(true)
    }

    /// All functions, by tenant and name.
    pub fn deployments(&self) -> Vec<(DeploymentKey, Deployment)> {
        self.lock().deployments.iter().map(|(key, deployment)| (key.clone(), deployment.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bundle that is kept while somebody works with its file.
#[derive(Debug)]
pub struct HeldBundle<'a> {
    store: &'a Store,
    digest: Digest,
}

impl HeldBundle<'_> {
    /// Its name.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Where its file is.
    pub fn path(&self) -> PathBuf {
        self.store.bundle_path(&self.digest)
    }
}

impl Drop for HeldBundle<'_> {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(count) = state.held_bundles.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                state.held_bundles.remove(&self.digest);
            }
        }
        self.store.remove_unused_bundle(&state, self.digest);
    }
}

impl Drop for Store {
    /// Writes down what was used when. Without it only that would be lost.
    fn drop(&mut self) {
        let mut state = self.lock();
        if !state.used.is_empty() {
            // What is lost otherwise is worth no more than a try.
            let _ = state.apply(Change::default());
        }
    }
}

impl Shelf {
    fn take(&mut self, digest: Digest, object: &mut Object, holding: Holding) {
        object.holders += 1;
        object.real_time |= holding.class == Class::RealTime;
        self.usage.add(holding.class, object.bytes);
        self.holdings.insert(digest, holding);
    }
}

impl State {
    fn apply(&mut self, mut change: Change) -> Result<(), StoreError> {
        for (tenant, digest) in &self.used {
            let holding = self.shelves.get(tenant).and_then(|shelf| shelf.holdings.get(digest));
            if let Some(holding) = holding {
                change.hold.push((tenant.clone(), *digest, holding.clone()));
            }
        }
        self.index.apply(&change)?;
        self.used.clear();
        Ok(())
    }

    /// The one place where it is decided who may touch an object. An object that is not there and
    /// one of others are the same to it.
    fn holding(&mut self, tenant: &Tenant, digest: Digest) -> Result<&mut Holding, StoreError> {
        self.shelves
            .get_mut(tenant)
            .and_then(|shelf| shelf.holdings.get_mut(&digest))
            .ok_or(StoreError::NoObject(digest))
    }

    /// Uses an object that the tenant has already, and takes a new form of it: whether it has. If
    /// not, whether there is room for it is checked.
    fn renew(
        &mut self,
        tenant: &Tenant,
        quota: &Quota,
        digest: Digest,
        wanted: Wanted<'_>,
    ) -> Result<bool, StoreError> {
        let shelf = self.shelves.entry(tenant.clone()).or_default();
        let Some(holding) = shelf.holdings.get_mut(&digest) else {
            let quota = Quota { all: Limit { count: quota.all.count.min(TENANT_OBJECTS_MAX), ..quota.all }, ..*quota };
            return quota.admits(&shelf.usage, wanted.class, wanted.bytes).map(|()| false);
        };
        holding.used_s = now_s();
        self.used.insert((tenant.clone(), digest));
        if wanted.form.is_some() && wanted.form != holding.form.as_ref() {
            holding.form = wanted.form.cloned();
            self.apply(Change::default())?;
        }
        Ok(true)
    }

    /// The content of an object, if it is in memory.
    fn in_memory(&mut self, digest: Digest) -> Option<Arc<Sealed>> {
        let content = self.objects.get(&digest)?.memory.clone()?;
        self.counters.found_in_memory += 1;
        self.touch(digest);
        Some(content)
    }

    /// Notes that an object in memory was used just now.
    fn touch(&mut self, digest: Digest) {
        let Some(object) = self.objects.get_mut(&digest) else { return };
        self.residents.remove(&(object.real_time, object.last_use, digest));
        self.uses += 1;
        object.last_use = self.uses;
        self.residents.insert((object.real_time, object.last_use, digest));
    }

    /// Keeps a content in memory, at the cost of those that were used longest ago, best-effort ones
    /// first. What is being read stays, and what is larger than the memory is not kept.
    fn remember(&mut self, digest: Digest, content: Arc<Sealed>, memory_bytes: u64) {
        let Some(object) = self.objects.get_mut(&digest).filter(|object| object.memory.is_none()) else { return };
        let bytes = object.bytes;
        object.memory = Some(content);
        self.in_memory_bytes += bytes;
        self.touch(digest);
        while self.in_memory_bytes > memory_bytes {
            let is_idle = |digest: &Digest| {
                self.objects[digest].memory.as_ref().is_some_and(|memory| Arc::strong_count(memory) == 1)
            };
            let victim =
                self.residents.iter().map(|resident| resident.2).find(|other| *other != digest && is_idle(other));
            self.leave_memory(victim.filter(|_| bytes <= memory_bytes).unwrap_or(digest));
            self.counters.left_memory += 1;
        }
    }

    fn leave_memory(&mut self, digest: Digest) {
        let Some(object) = self.objects.get_mut(&digest) else { return };
        self.residents.remove(&(object.real_time, object.last_use, digest));
        if object.memory.take().is_some() {
            self.in_memory_bytes -= object.bytes;
        }
    }

    /// Forgets a content that is damaged, whoever has a right to it.
    fn forget(&mut self, digest: Digest) -> Result<(), StoreError> {
        self.counters.damaged += 1;
        let holders: Vec<Tenant> = self
            .shelves
            .iter()
            .filter(|(_, shelf)| shelf.holdings.contains_key(&digest))
            .map(|(tenant, _)| tenant.clone())
            .collect();
        let release = holders.iter().map(|tenant| (tenant.clone(), digest)).collect();
        self.apply(Change { forget: vec![digest], release, ..Change::default() })?;
        holders.iter().for_each(|tenant| self.drop_holding(tenant, digest));
        self.drop_object(digest);
        Ok(())
    }

    fn drop_holding(&mut self, tenant: &Tenant, digest: Digest) {
        let Some(shelf) = self.shelves.get_mut(tenant) else { return };
        let (Some(holding), Some(object)) = (shelf.holdings.remove(&digest), self.objects.get_mut(&digest)) else {
            return;
        };
        shelf.usage.subtract(holding.class, object.bytes);
        object.holders -= 1;
        self.used.remove(&(tenant.clone(), digest));
        if shelf.holdings.is_empty() {
            self.shelves.remove(tenant);
        }
    }

    fn drop_object(&mut self, digest: Digest) {
        self.leave_memory(digest);
        self.objects.remove(&digest);
    }
}
