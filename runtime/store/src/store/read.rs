//! Reading objects.

use super::{Lease, Store, now_s};
use crate::error::StoreError;
use crate::object::{Form, ObjectInfo};
use atoll_core::Tenant;
use atoll_sealed::{Digest, Sealed};
use std::sync::Arc;

impl Store {
    /// An object of a tenant. Its content is not read.
    pub fn find(&self, tenant: &Tenant, digest: Digest) -> Result<ObjectInfo, StoreError> {
        let mut state = self.lock();
        let holding = state.holding(tenant, digest)?.clone();
        let object = state.objects.get(&digest).ok_or(StoreError::NoObject(digest))?;
        Ok(object.info(digest, &holding))
    }

    /// Reads an object of a tenant. If it was read from disk, it stays in memory if there is room.
    pub fn lease(&self, tenant: &Tenant, digest: Digest) -> Result<Lease, StoreError> {
        let (content, form) = self.begin(tenant, digest, |_| true)?;
        if let Some(content) = content {
            return Ok(Lease { content, form });
        }
        let content = self.read(tenant, digest)?;
        self.lock().remember(digest, Arc::clone(&content), self.memory_bytes);
        Ok(Lease { content, form })
    }

    /// Reads an object of a tenant for a client, which may keep the memory file for as long as it
    /// likes. So the content is either the file that a client sent ([`Sealed::is_received`]), or a
    /// copy from disk that nothing else in the daemon holds.
    pub fn copy(&self, tenant: &Tenant, digest: Digest) -> Result<Lease, StoreError> {
        let (content, form) = self.begin(tenant, digest, Sealed::is_received)?;
        let content = content.map_or_else(|| self.read(tenant, digest), Ok)?;
        Ok(Lease { content, form })
    }

    /// Notes the use of an object. Returns its form, and its content if it is in memory and `fits`.
    fn begin(
        &self,
        tenant: &Tenant,
        digest: Digest,
        fits: impl FnOnce(&Sealed) -> bool,
    ) -> Result<(Option<Arc<Sealed>>, Option<Form>), StoreError> {
        let mut state = self.lock();
        let holding = state.holding(tenant, digest)?;
        holding.used_s = now_s();
        let form = holding.form.clone();
        state.used.insert((tenant.clone(), digest));
        Ok((state.in_memory(digest, fits), form))
    }

    /// Reads an object of a tenant from disk.
    fn read(&self, tenant: &Tenant, digest: Digest) -> Result<Arc<Sealed>, StoreError> {
        let read = self.objects.read(&digest)?;
        let mut state = self.lock();
        // It may have been removed during the read.
        state.holding(tenant, digest)?;
        if let Some(content) = read {
            state.counters.read_from_disk += 1;
            return Ok(Arc::new(content));
        }
        tracing::error!(%digest, "the content of an object's file does not match its digest; removing the object");
        state.forget(digest)?;
        self.objects.remove(&digest);
        Err(StoreError::Damaged(digest))
    }
}
