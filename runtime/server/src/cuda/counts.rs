//! Counts of all sessions, for metrics and limits.

use crate::limits::{CUDA_SESSIONS_PER_TENANT_MAX, CUDA_STORED_BYTES_PER_TENANT_MAX};
use atoll_engine::Tenant;
use atoll_session::StoredCounts;
use atoll_session::limits::{STORED_BYTES_MAX, STORED_FUNCTIONS_MAX};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
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
    /// Stored functions of open sessions.
    pub(crate) stored_functions: AtomicU64,
    /// Their bytes.
    pub(crate) stored_bytes: AtomicU64,
    /// Runs that were sent as a call of a stored function.
    pub(crate) stored_calls: AtomicU64,
    /// Runs that differed from a stored function.
    pub(crate) stored_differences: AtomicU64,
    /// What the open sessions of each tenant have.
    tenants: Mutex<BTreeMap<Tenant, Taken>>,
}

/// What the open sessions of a tenant have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    sessions: u64,
    /// Stored functions that they may have, and their bytes.
    functions: u64,
    bytes: u64,
}

impl Counts {
    /// Counts what a session has stored since it had `before`.
    pub(super) fn note_stored(&self, before: StoredCounts, now: StoredCounts) {
        for (count, before, now) in [
            (&self.stored_functions, before.functions, now.functions),
            (&self.stored_bytes, before.bytes, now.bytes),
            (&self.stored_calls, before.calls, now.calls),
            (&self.stored_differences, before.differences, now.differences),
        ] {
            // Wraps for numbers that became smaller.
            count.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }
}

/// A session of a tenant, counted until it is dropped.
#[derive(Debug)]
pub(super) struct TenantSession {
    counts: Arc<Counts>,
    tenant: Tenant,
    /// Stored functions that it may have, and their bytes.
    functions: u64,
    bytes: u64,
}

impl TenantSession {
    /// Counts a session. `None` if the tenant has [`CUDA_SESSIONS_PER_TENANT_MAX`] of them.
    pub(super) fn begin(counts: &Arc<Counts>, tenant: &Tenant) -> Option<TenantSession> {
        let mut tenants = counts.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tenants.entry(tenant.clone()).or_default();
        if taken.sessions >= CUDA_SESSIONS_PER_TENANT_MAX {
            return None;
        }
        taken.sessions += 1;
        Some(TenantSession { counts: counts.clone(), tenant: tenant.clone(), functions: 0, bytes: 0 })
    }

    /// Allows stored functions: at most half of what the tenant's sessions leave of a number of
    /// functions, and of their bytes, so that sessions that begin later get some. Returns both.
    pub(super) fn allow_stored(&mut self, functions_max: u64) -> (u32, u64) {
        let mut tenants = self.counts.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tenants.entry(self.tenant.clone()).or_default();
        let functions = functions_max.saturating_sub(taken.functions).div_ceil(2).min(STORED_FUNCTIONS_MAX.into());
        let bytes = CUDA_STORED_BYTES_PER_TENANT_MAX.saturating_sub(taken.bytes) / 2;
        let bytes = bytes.min(STORED_BYTES_MAX);
        taken.functions += functions;
        taken.bytes += bytes;
        self.functions += functions;
        self.bytes += bytes;
        // It is at most the limit of the protocol.
        (functions as u32, bytes)
    }
}

impl Drop for TenantSession {
    fn drop(&mut self) {
        let mut tenants = self.counts.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = tenants.get_mut(&self.tenant) {
            taken.sessions -= 1;
            taken.functions -= self.functions;
            taken.bytes -= self.bytes;
            if taken.sessions == 0 {
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

    #[test]
    fn sessions_of_a_tenant_share_its_stored_functions() {
        let counts = Arc::new(Counts::default());
        let (one, other): (Tenant, Tenant) = ("one".parse().unwrap(), "other".parse().unwrap());
        let mut sessions: Vec<_> = (0..20).map(|_| TenantSession::begin(&counts, &one).unwrap()).collect();
        let allowed: Vec<(u32, u64)> = sessions.iter_mut().map(|session| session.allow_stored(100)).collect();
        assert_eq!(allowed[..3], [(50, STORED_BYTES_MAX), (25, STORED_BYTES_MAX), (13, STORED_BYTES_MAX)]);
        let (functions, bytes): (Vec<u32>, Vec<u64>) = allowed.into_iter().unzip();
        assert_eq!(functions.iter().sum::<u32>(), 100);
        assert!(bytes.iter().sum::<u64>() < CUDA_STORED_BYTES_PER_TENANT_MAX && bytes.iter().all(|bytes| *bytes > 0));
        let mut another = TenantSession::begin(&counts, &other).unwrap();
        assert_eq!(another.allow_stored(1000), (STORED_FUNCTIONS_MAX, STORED_BYTES_MAX));
        assert_eq!(another.allow_stored(0).0, 0);
        sessions.truncate(1);
        assert_eq!(sessions[0].allow_stored(100).0, 25, "the others gave theirs back");
        drop((sessions, another));
        assert!(counts.tenants.lock().unwrap().is_empty());
    }

    #[test]
    fn what_a_session_has_stored_is_counted_until_it_ends() {
        let counts = Counts::default();
        let first = StoredCounts { functions: 2, bytes: 10, stores: 2, calls: 5, differences: 0 };
        let second = StoredCounts { functions: 1, bytes: 4, stores: 2, calls: 6, differences: 1 };
        counts.note_stored(StoredCounts::default(), first);
        counts.note_stored(first, second);
        let now = || {
            let Counts { stored_functions, stored_bytes, stored_calls, stored_differences, .. } = &counts;
            [stored_functions, stored_bytes, stored_calls, stored_differences].map(|count| count.load(Relaxed))
        };
        assert_eq!(now(), [1, 4, 6, 1]);
        counts.note_stored(second, StoredCounts { functions: 0, bytes: 0, ..second });
        assert_eq!(now(), [0, 0, 6, 1]);
    }
}
