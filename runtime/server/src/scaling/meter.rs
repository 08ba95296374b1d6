//! Counts the requests of an autoscaled model.

use crate::repository::scaling::ScalingSettings;
use atoll_core::scaling::Observed;
use atoll_engine::Class;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counts of a model's requests since the last decision. Requests that name an instance are not
/// counted, because no other instance can serve them.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) settings: ScalingSettings,
    arrivals: AtomicU64,
    ended: AtomicU64,
    late: AtomicU64,
    /// Whether there were requests of a class, indexed by class.
    classes: [AtomicBool; 2],
}

/// A counted request. Dropping it counts its end, unless it ended while it waited for an instance.
#[derive(Debug)]
pub(crate) struct Metered {
    meter: Arc<Meter>,
    /// When its wait for an instance ended. The wait is not part of its service time.
    began: Option<Instant>,
}

impl Meter {
    pub(crate) fn new(settings: ScalingSettings) -> Meter {
        Meter {
            settings,
            arrivals: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            late: AtomicU64::new(0),
            classes: [const { AtomicBool::new(false) }; 2],
        }
    }

    /// Counts a request that has arrived.
    pub(super) fn arrive(self: &Arc<Meter>, class: Class) -> Metered {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.classes[class as usize].store(true, Ordering::Relaxed);
        Metered { meter: self.clone(), began: None }
    }

    /// For each class, whether there were requests of it since the last call.
    pub(super) fn take_classes(&self) -> [(Class, bool); 2] {
        [Class::RealTime, Class::BestEffort]
            .map(|class| (class, self.classes[class as usize].swap(false, Ordering::Relaxed)))
    }

    /// The counts since the last call. The caller fills in the queue and the capacity of other
    /// instances.
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

impl Metered {
    /// Notes that the model has an instance for the request.
    pub(super) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some(began) = self.began else { return };
        self.meter.ended.fetch_add(1, Ordering::Relaxed);
        let is_late = began.elapsed() > Duration::from_millis(self.meter.settings.latency_ms);
        self.meter.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
    }
}
