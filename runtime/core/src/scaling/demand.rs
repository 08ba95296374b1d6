//! The instances that the recent requests of a function needed.
//!
//! A profile says how often an instance begins a request and how long a request takes, and the SLO
//! leaves a slack: the time that a request may wait for an instance. [`Demand`] replays the
//! arrivals on imaginary instances. A request goes to the busiest instance that begins it within
//! the slack; if there is none, another instance is needed. An instance that had no request for the
//! cool-down is no longer needed. The headroom for bursts therefore follows from the SLO and the
//! requests, and no distribution of arrivals is assumed.
//!
//! The replay runs for every useful point of the profile. The point whose imaginary instances took
//! the least device time recently is the size of new instances. A small instance with a long pause
//! between requests is the best one for a light load; larger ones share their slack better under a
//! heavy load.

use super::algorithm::INSTANCES_MAX;
use super::config::ScalingConfig;
use super::profile::{Point, Profile};
use crate::ids::Nanos;

/// Maximum number of points for which arrivals are replayed. It bounds the CPU time of each
/// arrival.
pub const REPLAYED_MAX: usize = 32;

/// The part of the slack that is used, in percent. The rest is for errors of the profile.
pub const SLACK_PERCENT: u64 = 90;

/// The time over which the points are compared, in nanoseconds.
const HORIZON_NS: u64 = 20_000_000_000;

/// Another point is chosen if it took less than this percentage of the current point's device time.
/// A new point replaces instances, which a small gain does not justify.
const BETTER_PERCENT: u64 = 90;

/// Instances of one size that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// Their number.
    pub instances: u64,
    /// Their point.
    pub point: Point,
}

impl Needed {
    /// The load that they serve, in thousandths of a request per second.
    pub fn load(&self) -> u64 {
        self.point.throughput.saturating_mul(self.instances)
    }
}

/// The imaginary instances of a function.
#[derive(Clone, Debug)]
pub struct Demand {
    slo_ns: u64,
    keep_ns: u64,
    cold_start_ns: u64,
    replays: Vec<Replay>,
    /// The index of the point of new instances.
    chosen: usize,
    /// Device time is counted up to this time.
    counted: Nanos,
}

/// The imaginary instances of one size.
#[derive(Clone, Debug)]
struct Replay {
    point: Point,
    /// From one request of an instance to the next.
    service_ns: u64,
    /// How long a request may wait for an instance.
    slack_ns: u64,
    /// When each instance can begin with another request, ascending.
    free_at: Vec<u64>,
    /// The area of the instances times nanoseconds, over the horizon. Older time has less weight.
    area_ns: u64,
}

impl Replay {
    fn new(point: Point) -> Replay {
        Replay { point, service_ns: 0, slack_ns: 0, free_at: Vec::new(), area_ns: 0 }
    }

    fn set(&mut self, point: Point, slo_ns: u64) {
        self.point = point;
        self.service_ns = 1_000_000_000_000 / point.throughput.max(1);
        self.slack_ns = slo_ns.saturating_sub(point.latency_ns) / 100 * SLACK_PERCENT;
    }

    fn count(&mut self, elapsed_ns: u64) {
        let passed = elapsed_ns.min(HORIZON_NS);
        let left = u128::from(self.area_ns) * u128::from(HORIZON_NS - passed) / u128::from(HORIZON_NS);
        let area = self.point.area() * self.free_at.len() as u64;
        // An area is at most 10,000 for each of 1,024 instances: 2e17 over the horizon.
        self.area_ns = left as u64 + area * passed;
    }

    /// Removes instances without a request for the cool-down, but not the last one.
    fn expire(&mut self, now: u64, keep_ns: u64) {
        let kept = |free_at: &u64| free_at.saturating_add(keep_ns) >= now;
        let gone = self.free_at.iter().position(kept).unwrap_or(self.free_at.len());
        self.free_at.drain(..gone.min(self.free_at.len().saturating_sub(1)));
    }

    fn arrive(&mut self, now: u64) {
        let in_time = self.free_at.partition_point(|free_at| *free_at <= now.saturating_add(self.slack_ns));
        let begins = match in_time.checked_sub(1) {
            Some(busiest) => self.free_at.remove(busiest).max(now),
            None if self.free_at.len() < INSTANCES_MAX => now,
            None => self.free_at.remove(0),
        };
        let ends = begins.saturating_add(self.service_ns);
        let at = self.free_at.partition_point(|free_at| *free_at <= ends);
        self.free_at.insert(at, ends);
    }
}

impl Demand {
    /// The demand of a function without requests.
    pub fn new(config: &ScalingConfig, profile: &Profile) -> Demand {
        let mut demand = Demand {
            slo_ns: config.slo_ns,
            keep_ns: config.cool_down_ns,
            cold_start_ns: config.cold_start_ns,
            replays: Vec::new(),
            chosen: 0,
            counted: Nanos(0),
        };
        demand.set_profile(profile);
        demand
    }

    /// Sets the measured time that an instance takes to start.
    pub fn set_cold_start(&mut self, cold_start_ns: u64) {
        self.cold_start_ns = cold_start_ns;
    }

    /// Sets the profile. The replay is kept if the points have the same resources as before.
    pub fn set_profile(&mut self, profile: &Profile) {
        let points = useful(profile, self.slo_ns);
        let resources = |point: &Point| (point.partition, point.quota);
        let known = self.replays.iter().map(|replay| resources(&replay.point));
        if !known.eq(points.iter().map(resources)) {
            self.replays = points.iter().copied().map(Replay::new).collect();
            self.chosen = 0;
        }
        for (replay, point) in self.replays.iter_mut().zip(points) {
            replay.set(point, self.slo_ns);
        }
    }

    /// Replays the arrival of a request.
    pub fn arrive(&mut self, now: Nanos) {
        self.pass(now);
        self.replays.iter_mut().for_each(|replay| replay.arrive(now.0));
    }

    /// The instances that are needed now. `None` if at every point a request that waits for the
    /// start of an instance misses the SLO. Instances must then run before requests arrive.
    pub fn needed(&mut self, now: Nanos) -> Option<Needed> {
        self.pass(now);
        let starts_in_time = |point: &Point| point.latency_ns.saturating_add(self.cold_start_ns) <= self.slo_ns;
        let possible = self.replays.iter().enumerate().filter(|(_, replay)| starts_in_time(&replay.point));
        let best = possible.min_by_key(|(at, replay)| (replay.area_ns, *at))?.0;
        let (cost, chosen) = (u128::from(self.replays[best].area_ns), &self.replays[self.chosen]);
        let is_better = cost * 100 < u128::from(chosen.area_ns) * u128::from(BETTER_PERCENT);
        if is_better || !starts_in_time(&chosen.point) {
            self.chosen = best;
        }
        let Replay { point, free_at, .. } = &self.replays[self.chosen];
        // A function that has requests has an instance.
        Some(Needed { instances: (free_at.len() as u64).max(1), point: *point })
    }

    fn pass(&mut self, now: Nanos) {
        let elapsed_ns = now.0.saturating_sub(self.counted.0);
        self.counted = Nanos(self.counted.0.max(now.0));
        for replay in &mut self.replays {
            replay.count(elapsed_ns);
            replay.expire(now.0, self.keep_ns);
        }
    }
}

/// The points of a profile that keep the SLO and that no other point matches or beats in area,
/// throughput and latency. Sorted by area; at most [`REPLAYED_MAX`].
fn useful(profile: &Profile, slo_ns: u64) -> Vec<Point> {
    let mut points: Vec<Point> = profile.within(slo_ns).collect();
    points.sort_by_key(|point| (point.area(), std::cmp::Reverse(point.throughput), point.latency_ns));
    let mut kept: Vec<Point> = Vec::new();
    for point in points {
        let beats = |other: &Point| other.throughput >= point.throughput && other.latency_ns <= point.latency_ns;
        if !kept.iter().any(beats) {
            kept.push(point);
        }
    }
    let all = kept.len();
    if all <= REPLAYED_MAX {
        return kept;
    }
    // Evenly from the smallest to the largest.
    (0..REPLAYED_MAX).map(|number| kept[number * (all - 1) / (REPLAYED_MAX - 1)]).collect()
}
