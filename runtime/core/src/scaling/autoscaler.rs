//! Decides when to scale a function: on its predicted load, with a cool-down, and to and from zero
//! instances.

use super::algorithm::{Instance, ScaleError, scale};
use super::config::{HEADROOM_PERCENT_DEFAULT, ScalingConfig};
use super::decision::{Decision, Why};
use super::demand::Needed;
use super::fit::{capacity_of, fitted, kept};
use super::observed::{Observed, Recent, per_second};
use super::predictor::{Predictor, RATE_MAX};
use super::profile::{Point, Profile};
use crate::ids::Nanos;

/// If no headroom is set: the minimum time, in nanoseconds, over which lateness is measured, and
/// for which instances that were added because of it are kept. A cool-down may be shorter.
const JUDGED_NS: u64 = 30_000_000_000;

/// If no headroom is set: the minimum time, in nanoseconds, between two instances that are added
/// because of late requests.
const REACT_NS: u64 = 5_000_000_000;

/// The scaling of one function.
#[derive(Debug)]
pub struct Autoscaler {
    config: ScalingConfig,
    predictor: Predictor,
    last_step: Option<Nanos>,
    /// When the rate of arrivals was last measured, and the requests that arrived since then.
    measured: Option<(Nanos, u64)>,
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
            measured: None,
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
        self.last_step = Some(now);
        let rate = self.rate(now, observed.arrivals);
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

    /// The rate of arrivals. The requests of a step that comes early, in less than half an interval,
    /// count as those of a whole one, since few requests in a short time are no measurement. The
    /// predictor gets the rate with a later step.
    fn rate(&mut self, now: Nanos, arrivals: u64) -> u64 {
        let interval_ns = self.config.interval_ns;
        let (elapsed_ns, before) =
            self.measured.map_or((interval_ns, 0), |(at, before)| (now.0.saturating_sub(at.0), before));
        let arrived = before + arrivals;
        if let Some((at, _)) = self.measured.filter(|_| elapsed_ns < interval_ns / 2) {
            self.measured = Some((at, arrived));
            return per_second(arrived, interval_ns);
        }
        self.measured = Some((now, 0));
        let rate = per_second(arrived, elapsed_ns);
        self.predictor.observe(rate);
        rate
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
            let more = needed.map_or(1, |needed| needed.point.throughput);
            (load, decision.why) = (capacity.saturating_add(more), Why::Late);
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
            let load_left = load.saturating_sub(observed.base);
            decision.change = self.config.grow(profile, running, load_left, slo_ns, point)?;
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
        decision.change = self.config.shrink(profile, running, highest.saturating_sub(observed.base))?;
        decision.why = if self.is_idle(now) { Why::Idle } else { Why::Surplus };
        Ok(decision)
    }

    /// Whether `time_ns` has passed since late requests last caused a change.
    fn has_passed(&self, now: Nanos, time_ns: u64) -> bool {
        self.late_at.is_none_or(|at| now.0.saturating_sub(at.0) >= time_ns)
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
