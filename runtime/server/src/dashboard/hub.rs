//! Distributes the snapshots of one producer to all viewers. The producer runs while there are
//! viewers, and some seconds longer. So a viewer that reconnects, as the page does each minute,
//! misses no event, and a client that asks for single snapshots one after the other starts only one
//! producer.

use crate::inference::blocking;
use crate::limits::{DASHBOARD_INTERVAL, DASHBOARD_LINGER, DASHBOARD_VIEWERS_MAX, DASHBOARD_VIEWERS_PER_TENANT_MAX};
use atoll_engine::Tenant;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Collecting snapshots takes at most one part in this many of the time. If collecting is slow, the
/// interval grows.
const COST_MAX: u32 = 10;

/// Collects a snapshot. Blocks.
pub(crate) type Collect<T> = Box<dyn FnMut() -> T + Send>;

/// The viewers and their producer.
pub(crate) struct Hub<T> {
    state: Mutex<State<T>>,
    /// How long the producer continues without viewers.
    linger: Duration,
}

struct State<T> {
    /// Viewers by tenant.
    viewers: BTreeMap<Tenant, usize>,
    /// When the last viewer left; `None` while there are viewers.
    left: Option<Instant>,
    /// The channel of the producer. Only the producer owns it, so that viewers notice when the
    /// producer ends.
    latest: Weak<watch::Sender<Option<Arc<T>>>>,
}

/// A viewer's subscription.
pub(crate) struct Seat<T> {
    _place: Place<T>,
    latest: watch::Receiver<Option<Arc<T>>>,
}

/// Counts a viewer until it is dropped.
struct Place<T> {
    hub: Arc<Hub<T>>,
    tenant: Tenant,
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(count) = state.viewers.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.viewers.remove(&self.tenant);
            }
        }
        if state.viewers.is_empty() {
            state.left = Some(Instant::now());
        }
    }
}

impl<T> Hub<T> {
    pub(crate) fn new() -> Hub<T> {
        Hub::lingering(DASHBOARD_LINGER)
    }

    fn lingering(linger: Duration) -> Hub<T> {
        let state = State { viewers: BTreeMap::new(), left: None, latest: Weak::new() };
        Hub { state: Mutex::new(state), linger }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the producer has to end now. If so, the next viewer starts another one.
    fn retires(&self) -> bool {
        let mut state = self.lock();
        let retires = state.left.is_some_and(|left| left.elapsed() >= self.linger);
        if retires {
            state.latest = Weak::new();
        }
        retires
    }
}

impl<T: Send + Sync + 'static> Hub<T> {
    /// Adds a viewer; `None` if there are too many. If no producer runs, starts one with the
    /// function that `collector` returns.
    pub(crate) fn join(self: &Arc<Hub<T>>, tenant: &Tenant, collector: impl FnOnce() -> Collect<T>) -> Option<Seat<T>> {
        let mut state = self.lock();
        let own = state.viewers.get(tenant).copied().unwrap_or(0);
        let all: usize = state.viewers.values().sum();
        if all >= DASHBOARD_VIEWERS_MAX || own >= DASHBOARD_VIEWERS_PER_TENANT_MAX {
            return None;
        }
        let mut latest = match state.latest.upgrade() {
            Some(sender) => sender.subscribe(),
            None => {
                let (sender, receiver) = watch::channel(None);
                let sender = Arc::new(sender);
                state.latest = Arc::downgrade(&sender);
                tokio::spawn(produce(Arc::downgrade(self), sender, collector()));
                receiver
            }
        };
        // An existing snapshot is new to this viewer.
        latest.mark_changed();
        state.viewers.insert(tenant.clone(), own + 1);
        state.left = None;
        drop(state);
        Some(Seat { _place: Place { hub: self.clone(), tenant: tenant.clone() }, latest })
    }
}

impl<T> Seat<T> {
    /// Waits for the next snapshot that this viewer has not seen. The first call returns the latest
    /// one, if there is one. `None` if the producer has ended.
    pub(crate) async fn next(&mut self) -> Option<Arc<T>> {
        loop {
            self.latest.changed().await.ok()?;
            if let Some(latest) = self.latest.borrow_and_update().clone() {
                return Some(latest);
            }
        }
    }
}

/// Collects snapshots until there have been no viewers for a while, or the server has ended.
async fn produce<T: Send + Sync + 'static>(
    hub: Weak<Hub<T>>,
    sender: Arc<watch::Sender<Option<Arc<T>>>>,
    mut collect: Collect<T>,
) {
    while hub.upgrade().is_some_and(|hub| !hub.retires()) {
        let began = Instant::now();
        let collected = blocking(move || (collect(), collect)).await;
        let Some((snapshot, same)) = collected else { return };
        collect = same;
        sender.send_replace(Some(Arc::new(snapshot)));
        tokio::time::sleep(pause(began.elapsed())).await;
    }
}

/// The pause after a snapshot that took this long to collect.
fn pause(took: Duration) -> Duration {
    DASHBOARD_INTERVAL.max(took * COST_MAX) - took
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn tenant(name: &str) -> Tenant {
        name.parse().unwrap()
    }

    /// A collector that counts its snapshots, and a token that it holds while it exists.
    fn counting(token: &Arc<AtomicUsize>) -> Collect<usize> {
        let token = token.clone();
        Box::new(move || token.fetch_add(1, Ordering::Relaxed))
    }

    #[tokio::test]
    async fn one_producer_serves_all_viewers_and_ends_after_the_last() {
        let (hub, token) = (Arc::new(Hub::lingering(Duration::ZERO)), Arc::new(AtomicUsize::new(0)));
        let mut first = hub.join(&tenant("a"), || counting(&token)).unwrap();
        assert_eq!(first.next().await.map(|snapshot| *snapshot), Some(0));
        let mut second = hub.join(&tenant("b"), || panic!("a second producer")).unwrap();
        assert!(second.next().await.is_some(), "a new viewer sees the latest snapshot at once");
        assert!(first.next().await.is_some() && second.next().await.is_some());
        assert_eq!(Arc::strong_count(&token), 2, "there is one collector");
        drop((first, second));
        while Arc::strong_count(&token) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let made = token.load(Ordering::Relaxed);
        let mut third = hub.join(&tenant("a"), || counting(&token)).unwrap();
        assert_eq!(third.next().await.map(|snapshot| *snapshot), Some(made), "a new producer starts");
    }

    #[tokio::test]
    async fn a_viewer_that_comes_back_finds_the_same_producer() {
        let (hub, token) = (Arc::new(Hub::new()), Arc::new(AtomicUsize::new(0)));
        let mut first = hub.join(&tenant("a"), || counting(&token)).unwrap();
        assert!(first.next().await.is_some());
        drop(first);
        let mut again = hub.join(&tenant("a"), || panic!("a second producer")).unwrap();
        assert!(again.next().await.is_some());
        drop((again, hub));
        while Arc::strong_count(&token) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn viewers_are_bounded_by_tenant_and_in_all() {
        let (hub, token) = (Arc::new(Hub::new()), Arc::new(AtomicUsize::new(0)));
        let join = |name: &str| hub.join(&tenant(name), || counting(&token));
        let mut seats: Vec<_> = (0..DASHBOARD_VIEWERS_PER_TENANT_MAX).map(|_| join("a").unwrap()).collect();
        assert!(join("a").is_none());
        seats.extend((seats.len()..DASHBOARD_VIEWERS_MAX).map(|at| join(&format!("t{at}")).unwrap()));
        assert!(join("b").is_none());
        seats.remove(0);
        assert!(join("a").is_some(), "a place that was left is free");
    }

    #[tokio::test]
    async fn viewers_learn_that_collecting_failed() {
        let hub: Arc<Hub<usize>> = Arc::new(Hub::new());
        let mut seat = hub.join(&tenant("a"), || Box::new(|| panic!("a collector that panics"))).unwrap();
        assert_eq!(seat.next().await, None);
    }

    #[test]
    fn slow_collecting_makes_the_interval_longer() {
        assert_eq!(pause(Duration::ZERO), DASHBOARD_INTERVAL);
        assert_eq!(pause(Duration::from_secs(1)), Duration::from_secs(9));
    }
}
