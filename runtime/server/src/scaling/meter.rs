//! Counts the requests of a model that is scaled.

use crate::repository::scaling::ScalingSettings;
use atoll_core::scaling::Observed;
use atoll_engine::Class;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The requests of a model since the last decision, without those that name an instance: these
/// cannot be served by another one.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) settings: ScalingSettings,
    arrivals: AtomicU64,
    ended: AtomicU64,
    late: AtomicU64,
    /// Whether there were requests of a class.
    classes: [AtomicBool; 2],
}

/// A request. It has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Metered {
    meter: Arc<Meter>,
    /// When it had an instance. What it waited for one says nothing of the instances.
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

    /// Of which of both classes there were requests since the last call.
    pub(super) fn take_classes(&self) -> [(Class, bool); 2] {
        [Class::RealTime, Class::BestEffort]
            .map(|class| (class, self.classes[class as usize].swap(false, Ordering::Relaxed)))
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

impl Metered {
    /// There is an instance for the request.
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
