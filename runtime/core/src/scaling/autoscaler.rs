//! Decides when to scale a function: on its predicted load, with a cool-down, and to and from zero
//! instances.

use super::algorithm::{Change, Instance, ScaleError, scale, scale_down};
use super::config::{HEADROOM_PERCENT_DEFAULT, ScalingConfig};
use super::demand::Needed;
use super::predictor::{Predictor, RATE_MAX};
use super::profile::{Point, Profile};
use crate::ids::Nanos;
use crate::packing::InstanceId;
use std::fmt;

/// Late requests within a cool-down that are a reason to add an instance. Fewer may be chance.
const LATE_MIN: u64 = 3;

/// If no headroom is set: the minimum time, in nanoseconds, over which lateness is measured, and
/// for which instances that were added because of it are kept. A cool-down may be shorter.
const JUDGED_NS: u64 = 30_000_000_000;

/// If no headroom is set: the minimum time, in nanoseconds, between two instances that are added
/// because of late requests.
const REACT_NS: u64 = 5_000_000_000;

/// The measurements of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Requests that arrived.
    pub arrivals: u64,
    /// Requests that wait at the end of the interval.
    pub queued: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Requests that ended and took longer than the SLO.
    pub late: u64,
    /// The capacity of instances that are not scaled, in thousandths of a request per second.
    pub base: u64,
    /// The instances that recent requests needed. Not used if a headroom is set.
    pub needed: Option<Needed>,
}

/// Why instances are added, resized or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Nothing changes.
    #[default]
    Steady,
    /// A request found no instance.
    First,
    /// There are fewer instances than the configured minimum.
    Minimum,
    /// The load exceeds the capacity.
    Load,
    /// Load and queue together exceed the capacity.
    Queue,
    /// More than 1 % of the requests of a cool-down took longer than the SLO.
    Late,
    /// The capacity exceeded the load throughout the cool-down.
    Surplus,
    /// No request came for the idle time.
    Idle,
}

impl Why {
    /// All reasons.
    pub const ALL: [Why; 8] =
        [Why::Steady, Why::First, Why::Minimum, Why::Load, Why::Queue, Why::Late, Why::Surplus, Why::Idle];

    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Why::Steady => "nothing changes",
            Why::First => "a request found no instance",
            Why::Minimum => "there were fewer instances than min_instances",
            Why::Load => "the load exceeded the capacity",
            Why::Queue => "the queue would have taken longer than the target latency",
            Why::Late => "over 1 % of the requests took longer than the target latency",
            Why::Surplus => "the capacity exceeded the load throughout the cool-down",
            Why::Idle => "no request came for the idle time",
        }
    }
}

/// The decision of a step and its inputs. Rates are in thousandths of a request per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub change: Change,
    /// Why.
    pub why: Why,
    /// The rate of arrivals in the interval.
    pub rate: u64,
    /// The predicted rate of the next interval.
    pub predicted: u64,
    /// The load to serve: what recent requests needed, or the rate with headroom and queue.
    pub load: u64,
    /// The capacity before the change.
    pub capacity: u64,
    /// Why the SLO cannot be kept. Instances are then added at the points with the lowest latency.
    pub problem: Option<ScaleError>,
}

/// Requests that ended recently, counted in two halves of a cool-down. The counts cover between
/// half a cool-down and a whole one.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// When the second half began.
    since: Nanos,
    /// For each half, the requests that ended and the late ones among them.
    halves: [(u64, u64); 2],
}

impl Recent {
    fn since(since: Nanos) -> Recent {
        Recent { since, ..Recent::default() }
    }

    fn count(&mut self, now: Nanos, observed: &Observed, cool_down_ns: u64) {
        if now.0.saturating_sub(self.since.0) >= cool_down_ns / 2 {
            *self = Recent { since: now, halves: [self.halves[1], (0, 0)] };
        }
        let (ended, late) = &mut self.halves[1];
        (*ended, *late) = (*ended + observed.ended, *late + observed.late);
    }

    /// Whether more than 1 % of the requests were late, and at least [`LATE_MIN`].
    fn is_late(&self) -> bool {
        let [(ended, late), (ended_now, late_now)] = self.halves;
        late + late_now >= LATE_MIN && (late + late_now) * 100 > ended + ended_now
    }
}

/// The scaling of one function.
#[derive(Debug)]
pub struct Autoscaler {
    config: ScalingConfig,
    predictor: Predictor,
    last_step: Option<Nanos>,
    /// Requests of steps at which the clock did not advance.
    carried: Observed,
    /// When the current surplus of capacity began, and the highest load since then.
    surplus: Option<(Nanos, u64)>,
    /// When instances were last added because requests were late.
    late_at: Option<Nanos>,
    /// Load that is added to the replayed load because requests were late: the profile is too
    /// optimistic.
    beyond: u64,
    /// The requests by which lateness is judged.
    recent: Recent,
    last_request: Option<Nanos>,
}

impl Autoscaler {
    /// A function without instances.
    pub fn new(config: ScalingConfig, predictor: Predictor) -> Autoscaler {
        Autoscaler {
            config,
            predictor,
            last_step: None,
            carried: Observed::default(),
            surplus: None,
            late_at: None,
            beyond: 0,
            recent: Recent::default(),
            last_request: None,
        }
    }

    /// Sets the measured time that an instance takes to start.
    pub fn set_cold_start(&mut self, cold_start_ns: u64) {
        self.config.cold_start_ns = cold_start_ns;
    }

    /// Whether the function may have no instance: its settings allow it, and a request that has to
    /// wait for the start of an instance still keeps its SLO.
    pub fn may_scale_to_zero(&self, profile: &Profile) -> bool {
        self.config.min_instances == 0 && profile.within(self.slo_from_zero()).next().is_some()
    }

    /// The part of the SLO that is left after the cold start of an instance.
    fn slo_from_zero(&self) -> u64 {
        self.config.slo_ns.saturating_sub(self.config.cold_start_ns)
    }

    /// The highest latency allowed for new instances. It is lower for the first instance, whose
    /// requests waited for its start.
    fn slo(&self, profile: &Profile, running: &[Instance]) -> u64 {
        let is_first = running.is_empty() && self.may_scale_to_zero(profile);
        if is_first { self.slo_from_zero() } else { self.config.slo_ns }
    }

    /// The point of the first instance, for a request that waits for an instance between two steps.
    /// Returns `unmeasured` if there is no profile.
    ///
    /// # Errors
    /// [`ScaleError::Slo`] if no point keeps the SLO.
    pub fn first(&self, profile: Option<&Profile>, unmeasured: Point) -> Result<Point, ScaleError> {
        let Some(profile) = profile else { return Ok(unmeasured) };
        let change = scale(profile, &[], 1, self.slo(profile, &[]))?;
        Ok(change.add.first().copied().unwrap_or(unmeasured))
    }

    /// The load that is added to the replayed load because requests were late, in thousandths of a
    /// request per second.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The point of an instance to add for a request that has just arrived. `None` if the capacity
    /// of all instances covers what is needed, or if `instances`, the number of scaled ones, is the
    /// maximum. Does not wait for the end of an interval.
    pub fn another(&self, needed: &Needed, instances: usize, capacity: u64) -> Option<Point> {
        let has_room = instances < self.config.max_instances as usize;
        let is_missing = needed.load().saturating_add(self.beyond) > capacity;
        (self.config.headroom_percent.is_none() && has_room && is_missing).then_some(needed.point)
    }

    /// Decides after an interval. A function without a profile has the minimum number of instances,
    /// but at least one while there are requests; each has the point `unmeasured`.
    ///
    /// # Errors
    /// As [`scale`], and [`ScaleError::Clock`] if the clock did not advance; `observed` then counts
    /// in the next step.
    pub fn step(
        &mut self,
        now: Nanos,
        observed: &Observed,
        profile: Option<&Profile>,
        unmeasured: Point,
        running: &[Instance],
    ) -> Result<Decision, ScaleError> {
        let observed = self.collected(observed);
        if let Some(last) = self.last_step.filter(|last| *last >= now) {
            self.carried = observed;
            return Err(ScaleError::Clock { last, now });
        }
        let elapsed = self.last_step.map_or(self.config.interval_ns, |last| now.0 - last.0);
        self.last_step = Some(now);
        let rate = per_second(observed.arrivals, elapsed);
        self.predictor.observe(rate);
        // The idle time of instances that existed before the first step begins now.
        let is_new = self.last_request.is_none() && !running.is_empty();
        if observed.arrivals + observed.queued > 0 || is_new {
            self.last_request = Some(now);
        }
        let capacity = observed.base.saturating_add(capacity_of(running));
        let predicted = self.predictor.predict();
        let decision = Decision { rate, predicted, capacity, ..Decision::default() };
        match profile {
            None => Ok(self.unprofiled(now, decision, &observed, unmeasured, running)),
            Some(profile) => self.decide(now, decision, &observed, profile, running),
        }
    }

    /// The measurements including those carried over from earlier steps.
    fn collected(&mut self, observed: &Observed) -> Observed {
        let carried = std::mem::take(&mut self.carried);
        Observed {
            arrivals: observed.arrivals + carried.arrivals,
            ended: observed.ended + carried.ended,
            late: observed.late + carried.late,
            ..*observed
        }
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.last_request.is_none_or(|last| now.0.saturating_sub(last.0) >= self.config.idle_ns)
    }

    fn unprofiled(
        &self,
        now: Nanos,
        mut decision: Decision,
        observed: &Observed,
        unmeasured: Point,
        running: &[Instance],
    ) -> Decision {
        let (least, have) = (self.config.min_instances as usize, running.len());
        // Instances that are not scaled may serve the requests.
        let asked = usize::from(!self.is_idle(now) && observed.base == 0);
        let wanted = least.max(asked);
        decision.load = decision.rate.max(decision.predicted);
        if have < wanted {
            decision.why = if least > have { Why::Minimum } else { Why::First };
            decision.change.add = vec![unmeasured; wanted - have];
        } else if self.is_idle(now) && have > least {
            decision.why = Why::Idle;
            decision.change.remove = running[least..].iter().map(|instance| instance.id).collect();
        }
        decision
    }

    fn decide(
        &mut self,
        now: Nanos,
        mut decision: Decision,
        observed: &Observed,
        profile: &Profile,
        running: &[Instance],
    ) -> Result<Decision, ScaleError> {
        (_, decision.problem) = kept(profile, self.config.slo_ns);
        let capacity = decision.capacity;
        let needed = observed.needed.filter(|_| self.config.headroom_percent.is_none() && !self.is_idle(now));
        let at_least = |time_ns| needed.map_or(self.config.cool_down_ns, |_| self.config.cool_down_ns.max(time_ns));
        let (judged_ns, react_ns) = (at_least(JUDGED_NS), at_least(REACT_NS));
        self.recent.count(now, observed, judged_ns);
        let is_late = self.recent.is_late();
        if !is_late && self.has_passed(now, judged_ns) {
            self.beyond = 0;
        }
        let (without_queue, queue) = match needed {
            Some(needed) => (needed.load().saturating_add(self.beyond), 0),
            None => self.load(now, decision.rate, observed.queued, profile),
        };
        let mut load = without_queue + queue;
        let is_still_late = is_late && (needed.is_none() || observed.late > 0);
        if load <= capacity && is_still_late && self.has_passed(now, react_ns) {
            // Measured lateness outweighs the profile: another instance is needed.
            (load, decision.why) = (capacity + needed.map_or(1, |needed| needed.point.throughput), Why::Late);
            self.beyond = needed.map_or(0, |needed| load.saturating_sub(needed.load()));
            self.late_at = Some(now);
            self.recent = Recent::since(now);
        }
        decision.load = load;
        let missing = (self.config.min_instances as usize).saturating_sub(running.len());
        if load > capacity || missing > 0 {
            self.surplus = None;
            let (slo_ns, _) = kept(profile, self.slo(profile, running));
            let point = needed.map(|needed| needed.point);
            decision.change = self.grow(profile, running, load.saturating_sub(observed.base), slo_ns, point)?;
            decision.why = match decision.why {
                Why::Late => Why::Late,
                _ if load <= capacity => Why::Minimum,
                _ if running.is_empty() && observed.base == 0 => Why::First,
                _ if without_queue <= capacity => Why::Queue,
                _ => Why::Load,
            };
            return Ok(decision);
        }
        if let Some(needed) = needed {
            // The replay keeps an instance for the cool-down, so the surplus has already lasted
            // that long.
            self.surplus = None;
            let load = load.saturating_sub(observed.base);
            decision.change = fitted(running, load, needed.point, self.config.min_instances as usize);
            decision.why = if decision.change.is_empty() { Why::Steady } else { Why::Surplus };
            return Ok(decision);
        }
        let (since, highest) = self.surplus.map_or((now, load), |(since, highest)| (since, highest.max(load)));
        self.surplus = Some((since, highest));
        if is_late || now.0.saturating_sub(since.0) < self.config.cool_down_ns {
            return Ok(decision);
        }
        // The next removal follows after another cool-down.
        self.surplus = None;
        decision.change = self.shrink(profile, running, highest.saturating_sub(observed.base))?;
        decision.why = if self.is_idle(now) { Why::Idle } else { Why::Surplus };
        Ok(decision)
    }

    /// Whether `time_ns` has passed since late requests last caused a change.
    fn has_passed(&self, now: Nanos, time_ns: u64) -> bool {
        self.late_at.is_none_or(|at| now.0.saturating_sub(at.0) >= time_ns)
    }

    /// Adds instances for a load, up to the maximum; then enlarges existing ones. New instances
    /// have the point `of_each`; if it is `None`, the algorithm chooses their points.
    fn grow(
        &self,
        profile: &Profile,
        running: &[Instance],
        load: u64,
        slo_ns: u64,
        of_each: Option<Point>,
    ) -> Result<Change, ScaleError> {
        let capacity = capacity_of(running);
        let room = (self.config.max_instances as usize).saturating_sub(running.len());
        // A load that the maximum number of instances cannot cover is no error: instances are
        // enlarged below.
        let of_one = of_each.or_else(|| profile.most_efficient(slo_ns)).map_or(0, |point| point.throughput);
        let coverable = capacity.saturating_add(of_one.saturating_mul(room as u64));
        let mut change = match of_each {
            Some(point) => {
                let count = load.min(coverable).saturating_sub(capacity).div_ceil(of_one.max(1));
                Change { add: vec![point; count as usize], ..Change::default() }
            }
            None => scale(profile, running, load.min(coverable), slo_ns)?,
        };
        // If the capacity exceeds the load, the algorithm removes instances, which is not wanted
        // here.
        change.remove.clear();
        let smallest = || profile.within(slo_ns).min_by_key(|point| (point.throughput, point.area()));
        while running.len() + change.add.len() < self.config.min_instances as usize {
            let Some(point) = smallest() else { break };
            change.add.push(point);
        }
        if change.add.len() >= room {
            let added: u64 = change.add.iter().map(|point| point.throughput).sum();
            change.resize.extend(enlarged(profile, running, load.saturating_sub(capacity + added), slo_ns));
        }
        Ok(change)
    }

    /// Removes instances that a load does not need, down to the minimum; then shrinks the largest.
    fn shrink(&self, profile: &Profile, running: &[Instance], load: u64) -> Result<Change, ScaleError> {
        // The highest load of the cool-down may exceed the capacity; nothing is added here.
        let load = load.min(capacity_of(running));
        let mut change = scale(profile, running, load, self.config.slo_ns)?;
        let least = self.config.min_instances as usize;
        change.remove.truncate(running.len().saturating_sub(least));
        let stays = |instance: &&Instance| !change.remove.contains(&instance.id);
        let left: u64 = running.iter().filter(stays).map(|instance| instance.point.throughput).sum();
        let largest = running.iter().filter(stays).max_by_key(|instance| instance.point.area());
        let surplus = left.saturating_sub(load);
        let is_least = running.len() <= least.max(1) && change.remove.is_empty();
        if let Some(largest) = largest.filter(|_| is_least && surplus > 0) {
            let needed = largest.point.throughput.saturating_sub(surplus).max(1);
            let sufficient = profile.within(self.config.slo_ns).filter(|point| point.throughput >= needed);
            let smaller = sufficient.min_by_key(|point| (point.area(), point.throughput));
            change.resize = smaller
                .filter(|point| point.area() < largest.point.area())
                .map(|point| (largest.id, point))
                .into_iter()
                .collect();
        }
        Ok(change)
    }

    /// The load to serve: that of arrivals, and that of the queue. The first is the higher of the
    /// predicted and the current rate, plus headroom, so it follows a rise at once and a fall
    /// slowly. The second is the rate that serves the queue within the SLO.
    fn load(&self, now: Nanos, rate: u64, queued: u64, profile: &Profile) -> (u64, u64) {
        if self.is_idle(now) {
            // The smallest load keeps one instance if the function cannot scale to zero.
            return (u64::from(!self.may_scale_to_zero(profile) && self.last_request.is_some()), 0);
        }
        let load = self.predictor.predict().max(rate).max(1);
        let percent = self.config.headroom_percent.unwrap_or(HEADROOM_PERCENT_DEFAULT);
        let queue = u128::from(queued) * 1_000_000_000_000 / u128::from(self.config.slo_ns.max(1));
        let queue = u64::try_from(queue).unwrap_or(RATE_MAX).min(RATE_MAX);
        (load + load * percent / 100, queue)
    }
}

/// Removes the instances that a load does not need, the least efficient ones first, but keeps at
/// least `least`. Then resizes larger instances to `point` where the load allows it.
fn fitted(running: &[Instance], load: u64, point: Point, least: usize) -> Change {
    let capacity = capacity_of(running);
    let mut change = scale_down(running, capacity.saturating_sub(load));
    change.remove.truncate(running.len().saturating_sub(least));
    let mut left: Vec<Instance> = running.to_vec();
    left.retain(|instance| !change.remove.contains(&instance.id));
    left.sort_by_key(|instance| (std::cmp::Reverse(instance.point.area()), instance.id));
    let mut capacity = capacity_of(&left);
    for instance in left.iter().filter(|instance| instance.point.area() > point.area()) {
        let after = (capacity - instance.point.throughput).saturating_add(point.throughput);
        if after >= load {
            capacity = after;
            change.resize.push((instance.id, point));
        }
    }
    change
}

/// The throughput of instances together, in thousandths of a request per second.
fn capacity_of(running: &[Instance]) -> u64 {
    running.iter().map(|instance| instance.point.throughput).fold(0, u64::saturating_add)
}

/// The latency target that the profile can keep: the SLO, or the profile's lowest latency if no
/// point keeps the SLO. The latter comes with the error.
fn kept(profile: &Profile, slo_ns: u64) -> (u64, Option<ScaleError>) {
    match profile.points().iter().map(|point| point.latency_ns).min() {
        Some(best_ns) if best_ns > slo_ns => (best_ns, Some(ScaleError::Slo { slo_ns, best_ns })),
        _ => (slo_ns, None),
    }
}

/// Enlarges the smallest instance: to a point that serves `missing` more, or to the point with the
/// highest throughput if none does.
fn enlarged(profile: &Profile, running: &[Instance], missing: u64, slo_ns: u64) -> Option<(InstanceId, Point)> {
    let smallest = running.iter().min_by_key(|instance| (instance.point.throughput, instance.id))?;
    let needed = smallest.point.throughput.saturating_add(missing);
    let sufficient = profile.within(slo_ns).filter(|point| point.throughput >= needed);
    let point = sufficient
        .min_by_key(|point| (point.area(), point.throughput))
        .or_else(|| profile.within(slo_ns).max_by_key(|point| point.throughput))?;
    (missing > 0 && point.throughput > smallest.point.throughput).then_some((smallest.id, point))
}

/// The rate of `requests` in `elapsed_ns`, in thousandths of a request per second.
fn per_second(requests: u64, elapsed_ns: u64) -> u64 {
    let rate = u128::from(requests) * 1_000_000_000_000 / u128::from(elapsed_ns.max(1));
    u64::try_from(rate).unwrap_or(RATE_MAX).min(RATE_MAX)
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}
