//! The threads on which work for clients blocks.
//!
//! The runtime has one pool of threads for all work that blocks: reading and writing files, waiting
//! for an engine, or computing for long. Work for clients takes a part of it, and work for one tenant
//! a smaller part. Work beyond that waits for its turn without a thread. So a tenant that causes much
//! such work delays itself, other tenants wait only a short time for a thread, and there is always
//! one for metrics, health and the daemon's own work ([`crate::inference::blocking`]).
//!
//! The pool belongs to the process, and so do its shares.

use crate::inference::blocking;
use crate::limits::{CLIENT_THREADS_MAX, TENANT_THREADS_MAX};
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

static SHARES: LazyLock<Shares> = LazyLock::new(|| Shares::new(CLIENT_THREADS_MAX, TENANT_THREADS_MAX));

/// Runs blocking work for a tenant. `None` if it panicked. It continues if the future is dropped
/// after it has begun.
pub(crate) async fn for_tenant<T: Send + 'static>(
    tenant: &Tenant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    SHARES.for_tenant(tenant, work).await
}

/// Runs blocking work for a client whose tenant does not matter, since other limits bound how much of
/// it there is.
pub(crate) async fn for_client<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    SHARES.for_client(work).await
}

/// Parts of the pool, in threads.
struct Shares {
    clients: Arc<Semaphore>,
    of_tenant: usize,
    /// Tenants come from the configuration, the keys file and the users of the machine, so there are
    /// not many.
    tenants: Mutex<BTreeMap<Tenant, Arc<Semaphore>>>,
}

impl Shares {
    fn new(of_clients: usize, of_tenant: usize) -> Shares {
        Shares { clients: Arc::new(Semaphore::new(of_clients)), of_tenant, tenants: Mutex::default() }
    }

    /// The work of a tenant waits for its own share first, so at most that much of it waits in the
    /// queue of all clients, which is first come, first served.
    async fn for_tenant<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let own = {
            let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.of_tenant))).clone()
        };
        let turn = acquired(own).await;
        self.for_client(move || {
            let _turn = turn;
            work()
        })
        .await
    }

    async fn for_client<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = acquired(self.clients.clone()).await;
        blocking(move || {
            let _turn = turn;
            work()
        })
        .await
    }
}

async fn acquired(share: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // The semaphores are never closed.
    share.acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Barrier;
    use std::task::{Context, Waker};
    use tokio::sync::mpsc;

    fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn a_tenant_waits_for_its_own_share_and_others_for_a_short_time() {
        tokio::runtime::Runtime::new().unwrap().block_on(a_tenant_waits_and_others_do_not());
    }

    async fn a_tenant_waits_and_others_do_not() {
        let shares = Arc::new(Shares::new(3, 2));
        let [a, b]: [Tenant; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        let (begun, mut begins) = mpsc::unbounded_channel();
        let over = Arc::new(Barrier::new(3));
        let block = |tenant: &Tenant| {
            let (shares, tenant, begun, over) = (shares.clone(), tenant.clone(), begun.clone(), over.clone());
            tokio::spawn(async move {
                let work = move || {
                    begun.send(()).unwrap();
                    over.wait();
                };
                shares.for_tenant(&tenant, work).await
            })
        };
        let first = [block(&a), block(&a)];
        for _ in 0..2 {
            begins.recv().await.unwrap();
        }
        let mut third = pin!(shares.for_tenant(&a, || 3));
        assert!(is_pending(third.as_mut()), "the share of `a` is taken");
        assert_eq!(shares.for_tenant(&b, || "b").await, Some("b"));
        assert_eq!(shares.for_client(|| "client").await, Some("client"));
        over.wait();
        for work in first {
            assert_eq!(work.await.unwrap(), Some(()));
        }
        assert_eq!(third.await, Some(3));
    }

    #[tokio::test]
    async fn work_that_panics_or_is_not_awaited_gives_its_thread_back() {
        let shares = Shares::new(1, 1);
        let a: Tenant = "a".parse().unwrap();
        assert_eq!(shares.for_tenant(&a, || panic!("as intended")).await, None::<()>);
        let (began, begins) = std::sync::mpsc::channel();
        {
            let mut dropped = pin!(shares.for_tenant(&a, move || began.send(()).unwrap()));
            // Begins the work, which may even be over at once.
            let _ = is_pending(dropped.as_mut());
        }
        begins.recv().unwrap();
        assert_eq!(shares.for_tenant(&a, || 1).await, Some(1));
    }
}
