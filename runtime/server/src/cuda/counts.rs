//! Counts of all sessions, for metrics and limits.

use crate::limits::CUDA_SESSIONS_PER_TENANT_MAX;
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Sessions that are open.
    pub(crate) open: AtomicU64,
    /// Sessions that began; also the number of the next one.
    pub(crate) begun: AtomicU64,
    /// Bytes of the memory of open sessions.
    pub(crate) memory_bytes: AtomicU64,
    /// Tasks that sessions submitted.
    pub(crate) flushes: AtomicU64,
    /// Launches in them.
    pub(crate) launches: AtomicU64,
    /// Moves of suspended sessions to other devices.
    pub(crate) moves: AtomicU64,
    /// Open sessions over the network whose client has no connection.
    pub(crate) detached: AtomicU64,
    /// Connections that resumed a session.
    pub(crate) resumed: AtomicU64,
    /// Sessions that ended because their client did not come back in time.
    pub(crate) expired: AtomicU64,
    /// Bytes of code that are kept between sessions.
    pub(crate) warm_bytes: AtomicU64,
    /// Images from the cache of earlier sessions, which were not sent again.
    pub(crate) warm_images: AtomicU64,
    /// PTX from the cache of earlier sessions, which was not read again.
    pub(crate) warm_texts: AtomicU64,
    /// Sessions of each tenant that are open.
    tenants: Mutex<BTreeMap<Tenant, u64>>,
}

/// A session of a tenant, counted until it is dropped.
#[derive(Debug)]
pub(super) struct TenantSession {
    counts: Arc<Counts>,
    tenant: Tenant,
}

impl TenantSession {
    /// Counts a session. `None` if the tenant has [`CUDA_SESSIONS_PER_TENANT_MAX`] of them.
    pub(super) fn begin(counts: &Arc<Counts>, tenant: &Tenant) -> Option<TenantSession> {
        let mut tenants = counts.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let open = tenants.entry(tenant.clone()).or_default();
        if *open >= CUDA_SESSIONS_PER_TENANT_MAX {
            return None;
        }
        *open += 1;
        Some(TenantSession { counts: counts.clone(), tenant: tenant.clone() })
    }
}

impl Drop for TenantSession {
    fn drop(&mut self) {
        let mut tenants = self.counts.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = tenants.get_mut(&self.tenant) {
            *open -= 1;
            if *open == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_cannot_take_all_sessions() {
        let counts = Arc::new(Counts::default());
        let (greedy, other): (Tenant, Tenant) = ("greedy".parse().unwrap(), "other".parse().unwrap());
        let most = usize::try_from(CUDA_SESSIONS_PER_TENANT_MAX).unwrap();
        let mut open: Vec<_> = std::iter::from_fn(|| TenantSession::begin(&counts, &greedy)).take(most + 1).collect();
        assert_eq!(open.len(), most);
        assert!(TenantSession::begin(&counts, &other).is_some());
        open.pop();
        open.extend(TenantSession::begin(&counts, &greedy));
        assert_eq!(open.len(), most, "an ended session leaves its place");
        drop(open);
        assert!(counts.tenants.lock().unwrap().is_empty());
    }
}
