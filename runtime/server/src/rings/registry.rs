//! The open rings: limits and counts.

use super::account::Account;
use crate::limits::{RING_BYTES_PER_TENANT_MAX, RINGS_MAX, RINGS_PER_TENANT_MAX};
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The open rings of each tenant, and counts of all rings.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    open: Mutex<BTreeMap<Tenant, Open>>,
    succeeded: AtomicU64,
    failed: AtomicU64,
    closed: [AtomicU64; End::ALL.len()],
    /// The accounts of tenants that have or had rings.
    accounts: Mutex<BTreeMap<Tenant, Arc<Account>>>,
    /// How often threads paused because their tenant's rings had been awake for too long without
    /// serving a request.
    pub(crate) pauses: AtomicU64,
    /// How often threads slept because they had nothing to do.
    pub(crate) sleeps: AtomicU64,
}

/// Number and bytes of a tenant's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) rings: usize,
    pub(crate) bytes: u64,
}

/// Why a ring was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closed its connection, or it exited.
    Client,
    /// The client broke the protocol.
    Violation,
    /// The daemon stopped.
    Stopped,
}

impl End {
    pub(crate) const ALL: [End; 3] = [End::Client, End::Violation, End::Stopped];

    /// Its name in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            End::Client => "client",
            End::Violation => "violation",
            End::Stopped => "stopped",
        }
    }
}

/// A limit that a further ring would exceed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error("tenant `{0}` has {RINGS_PER_TENANT_MAX} open rings, which is the limit; close one first")]
    OfTenant(Tenant),
    #[error("all tenants together have {RINGS_MAX} open rings, which is the limit; try again later")]
    OfAll,
    #[error("with this ring, the tenant's rings would have {0} bytes; the limit is {RING_BYTES_PER_TENANT_MAX}")]
    Bytes(u64),
}

/// The right to have a ring. Dropping it subtracts the ring from its tenant's counts.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) rings: Arc<Rings>,
    pub(super) account: Arc<Account>,
    tenant: Tenant,
    bytes: u64,
}

impl Rings {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a ring of a tenant, with the bytes of its memory.
    ///
    /// # Errors
    /// If a limit is exceeded. Nothing is counted.
    pub(crate) fn admit(self: &Arc<Rings>, tenant: &Tenant, bytes: u64) -> Result<Seat, TooMany> {
        let mut all = self.lock();
        let Open { rings, bytes: held } = all.get(tenant).copied().unwrap_or_default();
        let sum = held.saturating_add(bytes);
        if rings >= RINGS_PER_TENANT_MAX {
            return Err(TooMany::OfTenant(tenant.clone()));
        }
        if all.values().map(|open| open.rings).sum::<usize>() >= RINGS_MAX {
            return Err(TooMany::OfAll);
        }
        if sum > RING_BYTES_PER_TENANT_MAX {
            return Err(TooMany::Bytes(sum));
        }
        all.insert(tenant.clone(), Open { rings: rings + 1, bytes: sum });
        drop(all);
        Ok(Seat { rings: self.clone(), account: self.account(tenant), tenant: tenant.clone(), bytes })
    }

    /// The account of a tenant. It stays after the tenant's rings are closed, so that closing a ring
    /// and opening another one renews no budget.
    fn account(&self, tenant: &Tenant) -> Arc<Account> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.entry(tenant.clone()).or_insert_with(|| Arc::new(Account::new())).clone()
    }

    /// CPU time of the threads of each tenant's rings, open and closed.
    pub(crate) fn cpu(&self) -> BTreeMap<Tenant, Duration> {
        let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().map(|(tenant, account)| (tenant.clone(), account.cpu())).collect()
    }

    /// Number and bytes of each tenant's rings, for metrics.
    pub(crate) fn open(&self) -> BTreeMap<Tenant, Open> {
        // `local` is always included, so that the metrics exist before the first ring.
        let mut open = BTreeMap::from([(Tenant::default(), Open::default())]);
        open.extend(self.lock().iter().map(|(tenant, open)| (tenant.clone(), *open)));
        open
    }

    /// Counts an answer to an inference request.
    pub(crate) fn note_answer(&self, is_success: bool) {
        let count = if is_success { &self.succeeded } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Numbers of answers with a result and with an error.
    pub(crate) fn answers(&self) -> (u64, u64) {
        (self.succeeded.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Counts a closed ring.
    pub(crate) fn note_end(&self, end: End) {
        self.closed[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of rings that were closed for this reason.
    pub(crate) fn closed(&self, end: End) -> u64 {
        self.closed[end as usize].load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.rings.lock();
        if let Some(open) = all.get_mut(&self.tenant) {
            open.rings -= 1;
            open.bytes -= self.bytes;
            if open.rings == 0 {
                all.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        name.parse().unwrap()
    }

    #[test]
    fn the_rings_of_a_tenant_are_limited_in_number_and_bytes() {
        let rings = Arc::new(Rings::default());
        let (a, b) = (tenant("a"), tenant("b"));
        let mut held: Vec<Seat> = (0..RINGS_PER_TENANT_MAX).map(|_| rings.admit(&a, 10).unwrap()).collect();
        assert_eq!(rings.admit(&a, 10).unwrap_err(), TooMany::OfTenant(a.clone()));
        let all = RING_BYTES_PER_TENANT_MAX;
        let seat = rings.admit(&b, all).unwrap();
        assert_eq!(rings.admit(&b, 1).unwrap_err(), TooMany::Bytes(all + 1));
        assert_eq!(rings.admit(&b, u64::MAX).unwrap_err(), TooMany::Bytes(u64::MAX));
        assert_eq!(rings.open()[&b], Open { rings: 1, bytes: all });
        held.pop();
        held.push(rings.admit(&a, 10).unwrap());
        assert_eq!(rings.open()[&a], Open { rings: RINGS_PER_TENANT_MAX, bytes: 10 * RINGS_PER_TENANT_MAX as u64 });
        drop((held, seat));
        assert_eq!(rings.open(), BTreeMap::from([(Tenant::default(), Open::default())]));
    }

    #[test]
    fn the_account_of_a_tenant_stays_when_its_rings_are_closed() {
        let rings = Arc::new(Rings::default());
        let (a, b) = (tenant("a"), tenant("b"));
        let (first, second) = (rings.admit(&a, 1).unwrap(), rings.admit(&a, 1).unwrap());
        first.account.bill(Duration::from_millis(2));
        second.account.bill(Duration::from_millis(3));
        drop((first, second));
        rings.admit(&a, 1).unwrap().account.bill(Duration::from_millis(4));
        rings.admit(&b, 1).unwrap().account.bill(Duration::from_millis(1));
        assert_eq!(rings.cpu(), BTreeMap::from([(a, Duration::from_millis(9)), (b, Duration::from_millis(1))]));
    }

    #[test]
    fn the_rings_of_all_tenants_are_limited_in_number() {
        let rings = Arc::new(Rings::default());
        let seat = |at: usize| rings.admit(&tenant(&format!("t{}", at / RINGS_PER_TENANT_MAX)), 1);
        let held: Vec<Seat> = (0..RINGS_MAX).map(|at| seat(at).unwrap()).collect();
        assert_eq!(rings.admit(&tenant("last"), 1).unwrap_err(), TooMany::OfAll);
        drop(held);
        assert!(rings.admit(&tenant("last"), 1).is_ok());
    }
}
