//! Counts the requests of an autoscaled model.

use crate::repository::scaling::ScalingSettings;
use atoll_core::Nanos;
use atoll_core::scaling::{Demand, Needed, Observed, Profile};
use atoll_engine::Class;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// The replay of recent requests, and the load that the instances serve.
    replayed: Mutex<Replayed>,
}

/// What recent requests needed, and what there is.
#[derive(Debug, Default)]
struct Replayed {
    /// `None` if a headroom is set, or nothing is known about the speed of instances.
    demand: Option<Demand>,
    /// What was needed when the last request arrived.
    needed: Option<Needed>,
    /// The load that the instances serve, in thousandths of a request per second, when the scaling
    /// loop last ran; `None` if no instance can be added at the moment.
    covered: Option<u64>,
}

impl Replayed {
    fn is_short(&self) -> bool {
        match (self.needed, self.covered) {
            (Some(needed), Some(covered)) => needed.load() > covered,
            _ => false,
        }
    }
}

/// A counted request. Dropping it counts its end, unless it ended while it waited for an instance.
#[derive(Debug)]
pub(crate) struct Metered {
    meter: Arc<Meter>,
    /// When its wait for an instance ended. The wait is not part of its service time.
    began: Option<Instant>,
    /// The deadline that it came with.
    deadline: Option<Duration>,
    /// Whether it was refused because no instance could finish it within the target latency.
    is_refused: bool,
}

impl Meter {
    pub(crate) fn new(settings: ScalingSettings) -> Meter {
        Meter {
            settings,
            arrivals: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            late: AtomicU64::new(0),
            classes: [const { AtomicBool::new(false) }; 2],
            replayed: Mutex::default(),
        }
    }

    fn target(&self) -> Duration {
        Duration::from_millis(self.settings.latency_ms)
    }

    fn replayed(&self) -> MutexGuard<'_, Replayed> {
        self.replayed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether recent requests need more instances than there are, and one can be added.
    pub(super) fn is_short(&self) -> bool {
        self.replayed().is_short()
    }

    /// What recent requests need now; `None` if a headroom is set, or nothing is known about the
    /// speed of instances. `cold_start_ns` is how long an instance takes to start.
    pub(super) fn needed(&self, now: Nanos, profile: Option<&Profile>, cold_start_ns: u64) -> Option<Needed> {
        let config = self.settings.config();
        let mut replayed = self.replayed();
        let Some(profile) = profile.filter(|_| config.headroom_percent.is_none()) else {
            *replayed = Replayed::default();
            return None;
        };
        let demand = replayed.demand.get_or_insert_with(|| Demand::new(&config, profile));
        demand.set_profile(profile);
        demand.set_cold_start(cold_start_ns);
        let needed = demand.needed(now);
        replayed.needed = needed;
        needed
    }

    /// Sets the load that the instances serve; `None` if no instance can be added.
    pub(super) fn cover(&self, covered: Option<u64>) {
        self.replayed().covered = covered;
    }

    /// Counts a request that has arrived.
    pub(super) fn arrive(self: &Arc<Meter>, class: Class, now: Nanos) -> Metered {
        let mut replayed = self.replayed();
        if let Some(demand) = &mut replayed.demand {
            demand.arrive(now);
            replayed.needed = demand.needed(now);
        }
        drop(replayed);
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.classes[class as usize].store(true, Ordering::Relaxed);
        Metered { meter: self.clone(), began: None, deadline: None, is_refused: false }
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
    /// Whether recent requests and this one need more instances than there are, and one can be
    /// added.
    pub(super) fn is_short(&self) -> bool {
        self.meter.is_short()
    }

    /// Notes that the model has an instance for the request.
    pub(super) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    /// Sets the deadline that the request came with.
    pub(super) fn set_deadline(&mut self, deadline: Option<Duration>) {
        self.deadline = deadline;
    }

    /// Notes that no instance can finish the request before its deadline. It counts as late, unless
    /// it came with less time than the target latency.
    pub(super) fn refuse(&mut self) {
        self.is_refused = self.deadline.is_some_and(|deadline| deadline >= self.meter.target());
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some(began) = self.began else { return };
        self.meter.ended.fetch_add(1, Ordering::Relaxed);
        let is_late = self.is_refused || began.elapsed() > self.meter.target();
        self.meter.late.fetch_add(u64::from(is_late), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::scaling::Point;

    const MS: u64 = 1_000_000;

    fn meter(settings: &str) -> Arc<Meter> {
        Arc::new(Meter::new(toml::from_str(settings).unwrap()))
    }

    fn profile() -> Profile {
        Profile::new(vec![Point { partition: 100, quota: 20, throughput: 10_000, latency_ns: 50 * MS }]).unwrap()
    }

    #[test]
    fn requests_are_short_of_an_instance_until_it_is_there_or_cannot_be_had() {
        let meter = meter("latency_ms = 100");
        assert!(!meter.arrive(Class::BestEffort, Nanos(0)).is_short(), "nothing is known yet");
        assert!(meter.needed(Nanos(0), Some(&profile()), 0).is_some());
        meter.cover(Some(10_000));
        assert!(!meter.arrive(Class::BestEffort, Nanos(MS)).is_short());
        // The instance begins the next request in 100 ms, which is too late.
        assert!(meter.arrive(Class::BestEffort, Nanos(2 * MS)).is_short());
        meter.cover(None);
        assert!(!meter.is_short(), "no room");
        meter.cover(Some(20_000));
        assert!(!meter.is_short());
        assert_eq!(meter.needed(Nanos(2 * MS), None, 0), None);
        assert!(!meter.arrive(Class::BestEffort, Nanos(3 * MS)).is_short(), "nothing is known any more");
    }

    #[test]
    fn refused_requests_are_late_unless_they_asked_for_more_than_the_target() {
        let meter = meter("latency_ms = 3600000");
        for (deadline_ms, late) in [(3_600_000, 1), (3_599_999, 0)] {
            let mut metered = meter.arrive(Class::BestEffort, Nanos(0));
            metered.begin();
            metered.set_deadline(Some(Duration::from_millis(deadline_ms)));
            metered.refuse();
            drop(metered);
            let observed = meter.take();
            assert_eq!((observed.ended, observed.late), (1, late), "{deadline_ms} ms");
        }
    }

    #[test]
    fn a_headroom_that_is_set_decides_alone() {
        let meter = meter("latency_ms = 100\nheadroom_percent = 30");
        assert_eq!(meter.needed(Nanos(0), Some(&profile()), 0), None);
        meter.cover(Some(0));
        assert!(!meter.arrive(Class::RealTime, Nanos(0)).is_short());
    }
}
