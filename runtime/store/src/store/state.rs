//! The tables of the store, under its lock.

use super::now_s;
use crate::deployment::{Deployment, DeploymentKey};
use crate::error::StoreError;
use crate::index::{Change, Index};
use crate::limits::MEMORY_OBJECTS_MAX;
use crate::object::{Form, Holding, ObjectInfo, Usage};
use atoll_core::{Class, Tenant};
use atoll_sealed::{Digest, Sealed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct State {
    pub(super) index: Index,
    pub(super) objects: BTreeMap<Digest, Object>,
    pub(super) tenants: BTreeMap<Tenant, TenantObjects>,
    pub(super) deployments: BTreeMap<DeploymentKey, Deployment>,
    /// Deployed graphs with their manifests.
    pub(super) graphs: BTreeMap<DeploymentKey, String>,
    /// Instances of functions with their records.
    pub(super) instances: BTreeMap<DeploymentKey, String>,
    /// Bundles in use by deployments that have not finished, with the number of such uses.
    pub(super) held_bundles: BTreeMap<Digest, usize>,
    /// Objects that are being stored, by tenant. They count against its quota.
    pub(super) reserved: BTreeMap<Tenant, Usage>,
    /// Objects in memory: best-effort ones first, then by last use.
    pub(super) residents: BTreeSet<(bool, u64, Digest)>,
    /// Their total size.
    pub(super) in_memory_bytes: u64,
    /// Counter of uses, to find the least recently used object.
    pub(super) uses: u64,
    /// Holdings whose last use is not in the index yet; written with the next change.
    pub(super) used: BTreeSet<(Tenant, Digest)>,
    pub(super) counters: Counters,
}

/// An object, shared by all tenants that stored it.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) bytes: u64,
    pub(super) holders: u64,
    pub(super) memory: Option<Arc<Sealed>>,
    pub(super) last_use: u64,
    /// Whether any of its holders stored it as real-time.
    pub(super) real_time: bool,
}

/// The objects of a tenant.
#[derive(Debug, Default)]
pub(super) struct TenantObjects {
    pub(super) holdings: BTreeMap<Digest, Holding>,
    pub(super) usage: Usage,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) found_in_memory: u64,
    pub(super) read_from_disk: u64,
    pub(super) left_memory: u64,
    pub(super) damaged: u64,
}

impl Object {
    /// The object as a tenant sees it.
    pub(super) fn info(&self, digest: Digest, holding: &Holding) -> ObjectInfo {
        ObjectInfo {
            digest,
            bytes: self.bytes,
            class: holding.class,
            form: holding.form.clone(),
            created_s: holding.created_s,
            used_s: holding.used_s,
            in_memory: self.memory.is_some(),
        }
    }
}

impl TenantObjects {
    pub(super) fn take(&mut self, digest: Digest, object: &mut Object, holding: Holding) {
        object.holders += 1;
        object.real_time |= holding.class == Class::RealTime;
        self.usage.add(holding.class, object.bytes);
        self.holdings.insert(digest, holding);
    }
}

impl State {
    pub(super) fn apply(&mut self, mut change: Change) -> Result<(), StoreError> {
        for (tenant, digest) in &self.used {
            let holding = self.tenants.get(tenant).and_then(|owned| owned.holdings.get(digest));
            if let Some(holding) = holding {
                change.hold.push((tenant.clone(), *digest, holding.clone()));
            }
        }
        self.index.apply(&change)?;
        self.used.clear();
        Ok(())
    }

    /// The tenant's reference to an object. All access checks go through here. An unknown object
    /// and an object of other tenants give the same error.
    pub(super) fn holding(&mut self, tenant: &Tenant, digest: Digest) -> Result<&mut Holding, StoreError> {
        self.tenants
            .get_mut(tenant)
            .and_then(|owned| owned.holdings.get_mut(&digest))
            .ok_or(StoreError::NoObject(digest))
    }

    /// Records that a tenant has an object, which may be in memory already.
    pub(super) fn take(&mut self, tenant: &Tenant, digest: Digest, bytes: u64, holding: Holding) {
        let new = Object { bytes, holders: 0, memory: None, last_use: 0, real_time: false };
        let object = self.objects.entry(digest).or_insert(new);
        let before = (object.real_time, object.last_use, digest);
        self.tenants.entry(tenant.clone()).or_default().take(digest, object, holding);
        // The tenant may store it for real-time work, and the others not.
        if self.residents.remove(&before) {
            self.residents.insert((object.real_time, object.last_use, digest));
        }
    }

    /// Objects of a tenant, and those that are being stored.
    pub(super) fn used_and_reserved(&self, tenant: &Tenant) -> Usage {
        let usage = self.tenants.get(tenant).map(|owned| owned.usage).unwrap_or_default();
        usage.plus(&self.reserved.get(tenant).copied().unwrap_or_default())
    }

    /// Whether a tenant has an object of this size.
    pub(super) fn has_size(&self, tenant: &Tenant, bytes: u64) -> bool {
        let mut held = self.tenants.get(tenant).into_iter().flat_map(|owned| owned.holdings.keys());
        held.any(|digest| self.objects.get(digest).is_some_and(|object| object.bytes == bytes))
    }

    /// Updates form and last use of an object that the tenant already has, and returns true.
    /// Returns false if it does not have it.
    pub(super) fn renew(&mut self, tenant: &Tenant, digest: Digest, form: Option<&Form>) -> Result<bool, StoreError> {
        let Ok(holding) = self.holding(tenant, digest) else { return Ok(false) };
        holding.used_s = now_s();
        let is_other = form.is_some() && form != holding.form.as_ref();
        if is_other {
            holding.form = form.cloned();
        }
        self.used.insert((tenant.clone(), digest));
        if is_other {
            self.apply(Change::default())?;
        }
        Ok(true)
    }

    /// The bytes of an object, if they are in memory and `fits`.
    pub(super) fn in_memory(&mut self, digest: Digest, fits: impl FnOnce(&Sealed) -> bool) -> Option<Arc<Sealed>> {
        let content = self.objects.get(&digest)?.memory.clone().filter(|content| fits(content))?;
        self.counters.found_in_memory += 1;
        self.touch(digest);
        Some(content)
    }

    /// Records a use of an object in memory.
    pub(super) fn touch(&mut self, digest: Digest) {
        let Some(object) = self.objects.get_mut(&digest) else { return };
        self.residents.remove(&(object.real_time, object.last_use, digest));
        self.uses += 1;
        object.last_use = self.uses;
        self.residents.insert((object.real_time, object.last_use, digest));
    }

    /// Keeps the bytes of an object in memory. Evicts the least recently used objects, best-effort
    /// ones first, but none that is being read. The object is not kept if it is larger than the
    /// memory, or if no other object can be evicted. The number of objects is limited too, since
    /// each takes a descriptor.
    pub(super) fn remember(&mut self, digest: Digest, content: Arc<Sealed>, memory_bytes: u64) {
        let Some(object) = self.objects.get_mut(&digest).filter(|object| object.memory.is_none()) else { return };
        let bytes = object.bytes;
        object.memory = Some(content);
        self.in_memory_bytes += bytes;
        self.touch(digest);
        while self.in_memory_bytes > memory_bytes || self.residents.len() > MEMORY_OBJECTS_MAX {
            let is_idle = |digest: &Digest| {
                self.objects[digest].memory.as_ref().is_some_and(|memory| Arc::strong_count(memory) == 1)
            };
            let victim =
                self.residents.iter().map(|resident| resident.2).find(|other| *other != digest && is_idle(other));
            self.leave_memory(victim.filter(|_| bytes <= memory_bytes).unwrap_or(digest));
            self.counters.left_memory += 1;
        }
    }

    pub(super) fn leave_memory(&mut self, digest: Digest) {
        let Some(object) = self.objects.get_mut(&digest) else { return };
        self.residents.remove(&(object.real_time, object.last_use, digest));
        if object.memory.take().is_some() {
            self.in_memory_bytes -= object.bytes;
        }
    }

    /// Removes a damaged object from all its tenants.
    pub(super) fn forget(&mut self, digest: Digest) -> Result<(), StoreError> {
        self.counters.damaged += 1;
        let holders: Vec<Tenant> = self
            .tenants
            .iter()
            .filter(|(_, owned)| owned.holdings.contains_key(&digest))
            .map(|(tenant, _)| tenant.clone())
            .collect();
        let release = holders.iter().map(|tenant| (tenant.clone(), digest)).collect();
        self.apply(Change { forget: vec![digest], release, ..Change::default() })?;
        holders.iter().for_each(|tenant| self.drop_holding(tenant, digest));
        self.drop_object(digest);
        Ok(())
    }

    pub(super) fn drop_holding(&mut self, tenant: &Tenant, digest: Digest) {
        let Some(owned) = self.tenants.get_mut(tenant) else { return };
        let (Some(holding), Some(object)) = (owned.holdings.remove(&digest), self.objects.get_mut(&digest)) else {
            return;
        };
        owned.usage.subtract(holding.class, object.bytes);
        object.holders -= 1;
        self.used.remove(&(tenant.clone(), digest));
        if owned.holdings.is_empty() {
            self.tenants.remove(tenant);
        }
    }

    pub(super) fn drop_object(&mut self, digest: Digest) {
        self.leave_memory(digest);
        self.objects.remove(&digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_objects_in_memory_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State {
            index: Index::open(folder.path().join("index.redb")).unwrap(),
            objects: BTreeMap::new(),
            tenants: BTreeMap::new(),
            deployments: BTreeMap::new(),
            graphs: BTreeMap::new(),
            instances: BTreeMap::new(),
            held_bundles: BTreeMap::new(),
            reserved: BTreeMap::new(),
            residents: BTreeSet::new(),
            in_memory_bytes: 0,
            uses: 0,
            used: BTreeSet::new(),
            counters: Counters::default(),
        };
        // All have the same content, so none counts as unused, and the last one is not kept.
        let content = Arc::new(Sealed::of("test", b"x").unwrap());
        for number in 0..=MEMORY_OBJECTS_MAX as u64 {
            let digest = Digest::of(&number.to_le_bytes());
            let object = Object { bytes: 1, holders: 0, memory: None, last_use: 0, real_time: false };
            state.objects.insert(digest, object);
            state.remember(digest, Arc::clone(&content), u64::MAX);
        }
        let most = MEMORY_OBJECTS_MAX;
        let found = (state.residents.len(), state.in_memory_bytes, state.counters.left_memory);
        assert_eq!(found, (most, most as u64, 1));
    }
}
