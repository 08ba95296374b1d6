//! Storing objects. An object is admitted by its size before its content is read, and counts while it
//! is written. So neither a large content nor many at one time exceed a quota on disk, and a refusal
//! costs no work.

use super::{Store, now_s};
use crate::error::StoreError;
use crate::index::Change;
use crate::object::{Form, Holding, Quota};
use atoll_core::{Class, Tenant};
use atoll_sealed::{Digest, Sealed};
use std::sync::Arc;

impl Store {
    /// Stores an object of a tenant and returns its digest. The object is durable when this
    /// returns. Storing it again changes only its form and its time of last use; a different class
    /// is ignored.
    ///
    /// A tenant that does not have the object yet waits until its bytes are written, even if
    /// another tenant has the same object. Otherwise the time would reveal that it exists.
    ///
    /// # Errors
    /// The object would exceed the quota, together with those that the tenant is storing at the
    /// same time. It is not read then, unless the tenant has an object of its size, which may be the
    /// same one.
    pub fn put(
        &self,
        tenant: &Tenant,
        quota: &Quota,
        class: Class,
        form: Option<Form>,
        content: Sealed,
    ) -> Result<Digest, StoreError> {
        let bytes = content.bytes();
        let reserved = match self.reserve(tenant, quota, class, bytes) {
            Err(refusal) if !self.lock().has_size(tenant, bytes) => return Err(refusal),
            reserved => reserved,
        };
        let digest = content.digest().map_err(|source| StoreError::Io {
            what: "cannot read",
            path: "the object".into(),
            source,
        })?;
        if self.lock().renew(tenant, digest, form.as_ref())? {
            return Ok(digest);
        }
        // Until the object is in the index, or has failed.
        let _reserved = reserved?;
        let staged = self.objects.stage(&content)?;
        let mut state = self.lock();
        // Another thread may have stored this object in the meantime.
        if state.renew(tenant, digest, form.as_ref())? {
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
        state.take(tenant, digest, bytes, holding);
        state.remember(digest, Arc::new(content), self.memory_bytes);
        Ok(digest)
    }

    /// Reserves room in a quota.
    fn reserve(&self, tenant: &Tenant, quota: &Quota, class: Class, bytes: u64) -> Result<Reservation<'_>, StoreError> {
        let mut state = self.lock();
        quota.admits(&state.used_and_reserved(tenant), class, bytes)?;
        state.reserved.entry(tenant.clone()).or_default().add(class, bytes);
        Ok(Reservation { store: self, tenant: tenant.clone(), class, bytes })
    }
}

/// Room in the quota of a tenant for an object that is being stored. Dropping it gives it back, which
/// takes the lock of the store.
struct Reservation<'a> {
    store: &'a Store,
    tenant: Tenant,
    class: Class,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        let Some(reserved) = state.reserved.get_mut(&self.tenant) else { return };
        reserved.subtract(self.class, self.bytes);
        if reserved.count == 0 {
            state.reserved.remove(&self.tenant);
        }
    }
}
