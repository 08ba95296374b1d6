//! Counts the requests of a model that is scaled.

use crate::repository::scaling::ScalingSettings;
use atoll_core::scaling::Observed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The requests of a model since the last decision.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) settings: ScalingSettings,
    arrivals: AtomicU64,
    ended: AtomicU64,
    late: AtomicU64,
    /// Requests that wait for an instance.
    waiting: AtomicU64,
    /// Wakes them when there may be one.
    pub(super) started: Notify,
}

/// A request. It has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Metered {
    meter: Arc<Meter>,
    arrived: Instant,
}

/// A request that waits for an instance until this is dropped.
#[derive(Debug)]
pub(super) struct Waiting<'m>(&'m Meter);

impl Meter {
    pub(crate) fn new(settings: ScalingSettings) -> Meter {
        Meter {
            settings,
            arrivals: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            late: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            started: Notify::new(),
        }
    }

    /// Counts a request that has arrived.
    pub(crate) fn arrive(self: &Arc<Meter>) -> Metered {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        Metered { meter: self.clone(), arrived: Instant::now() }
    }

    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(self)
    }

    /// Requests that wait for an instance.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    /// What was counted since the last call; neither queue nor other instances.
    pub(super) fn take(&self) -> Observed {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Observed {
            arrivals: take(&self.arrivals),
            ended: take(&self.ended),
            late: take(&self.late),
            ..Observed::default()
        }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.meter.ended.fetch_add(1, Ordering::Relaxed);
        let is_late = self.arrived.elapsed() > Duration::from_millis(self.meter.settings.latency_ms);
        self.meter.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
