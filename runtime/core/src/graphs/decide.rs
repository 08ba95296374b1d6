//! The admission decision for one request: which placements to try, and which plan to take.

use super::admission::Admission;
use super::event::{Arrival, NodeId};
use super::explain::{Explanation, Obstacle, Reason, Tried, Verdict};
use super::planner::{Bounds, Deployed, Plan, Spread, kinds_of, nodes_by_kind, place, plan};
use super::plans::Qualify;
use super::spec::{Cost, Prefer};
use crate::ids::Nanos;
use crate::rng::Rng;
use std::ops::Range;

/// Returns `now + after` as the time of a deadline.
///
/// # Errors
/// [`Reason::DeadlinePast`] if `after` is 0 or the sum overflows 64 bits.
pub fn deadline_at(now: Nanos, after: Nanos) -> Result<Nanos, Reason> {
    match now.0.checked_add(after.0) {
        Some(at) if after.0 > 0 => Ok(Nanos(at)),
        _ => Err(Reason::DeadlinePast),
    }
}

impl Admission {
    /// Decides about a request. Changes only the random generator. If there is a plan, the caller
    /// fills in the verdict.
    pub(super) fn decide(&mut self, arrival: Arrival, now: u64) -> (Explanation, Option<Plan>) {
        let mut explanation = Explanation::new(arrival, Nanos(now));
        let decided = self.find_plan(arrival, now, &mut explanation);
        let plan = decided.map_err(|reason| explanation.verdict = Verdict::Rejected(reason)).ok();
        (explanation, plan)
    }

    /// Returns the decision that a request would get now, without reserving anything.
    pub fn consider(&mut self, arrival: Arrival, now: Nanos) -> Explanation {
        // The generator is restored, so that this call does not change the samples of later
        // decisions.
        let rng = self.rng.clone();
        for node in &mut self.nodes {
            node.timeline.catch_up(now.0);
        }
        let (mut explanation, plan) = self.decide(arrival, now.0);
        if let Some(plan) = plan {
            explanation.verdict = plan.verdict();
        }
        self.rng = rng;
        explanation
    }

    fn find_plan(&mut self, arrival: Arrival, now: u64, explanation: &mut Explanation) -> Result<Plan, Reason> {
        let deployed = self.graphs.get(arrival.graph.0 as usize).filter(|deployed| !deployed.is_removed);
        let deployed = deployed.ok_or(Reason::UnknownGraph)?;
        if self.runs.contains_key(&arrival.request) {
            return Err(Reason::Duplicate);
        }
        let own = || deployed.graph.deadline().map(|after| deadline_at(Nanos(now), after)).transpose();
        let deadline = if arrival.deadline.is_some() { arrival.deadline } else { own()? };
        let price_max = arrival.price_max.or(deployed.graph.price_max());
        (explanation.deadline, explanation.price_max) = (deadline, price_max);
        explanation.assignments = deployed.plans.considered();
        explanation.optimal = deployed.plans.list().len();
        if deadline.is_some_and(|deadline| deadline.0 <= now) {
            return Err(Reason::DeadlinePast);
        }
        let prefer = deployed.graph.prefer().unwrap_or(self.config.prefer);
        let limits = Limits { qualify: self.config.qualify, now, deadline, price_max };
        let reused = self.try_reuse(deployed, limits, &mut explanation.tried);
        if let Some(plan) = choose(reused, prefer, &mut self.rng) {
            return Ok(plan);
        }
        let time = deadline.map(|deadline| Nanos(deadline.0 - now));
        let ranges = deployed.plans.qualifying(self.config.qualify, time, price_max);
        explanation.qualifying = ranges.iter().map(ExactSizeIterator::len).sum();
        if explanation.qualifying == 0 {
            let reason = none_qualifies(deployed, time, price_max);
            return Err(reason.or_else(|| self.impossible(deployed)).unwrap_or(Reason::NoDevices { stage: 0 }));
        }
        let is_random = prefer == Prefer::Random;
        let sampled = sample(&ranges, self.config.sample, !is_random, &mut self.rng);
        let plans = self.try_new(deployed, &sampled, limits, &mut explanation.tried);
        choose(plans, prefer, &mut self.rng).ok_or_else(|| self.reason(deployed, &explanation.tried))
    }

    fn try_reuse(&self, deployed: &Deployed, limits: Limits, tried: &mut Vec<Tried>) -> Vec<Plan> {
        let is_there = |placement: &[NodeId]| {
            let stages = placement.iter().zip(&deployed.functions);
            stages.into_iter().all(|(id, function)| self.nodes[usize::from(id.0)].resident.contains_key(function))
        };
        let warm = deployed.placements.iter().filter(|placement| is_there(placement));
        let plans = warm.filter_map(|placement| {
            let kinds = kinds_of(placement, &self.nodes);
            let result = plan(deployed, placement.clone(), &self.nodes, limits.bounds(), true);
            limits.note(result, placement.clone(), kinds, true, tried)
        });
        plans.collect()
    }

    fn try_new(&self, deployed: &Deployed, sampled: &[usize], limits: Limits, tried: &mut Vec<Tried>) -> Vec<Plan> {
        let spreads: &[Spread] =
            if self.config.spreads { &[Spread::ByTime, Spread::ByMemory] } else { &[Spread::ByMemory] };
        let by_kind = nodes_by_kind(&self.nodes, deployed.costs.kinds().len());
        let mut plans = Vec::new();
        for &index in sampled {
            let assignment = &deployed.plans.list()[index];
            for spread in spreads {
                let placed = place(deployed, assignment, &self.nodes, &by_kind, *spread);
                let nodes = placed.clone().unwrap_or_default();
                let planned = placed.and_then(|nodes| plan(deployed, nodes, &self.nodes, limits.bounds(), false));
                if let Some(plan) = limits.note(planned, nodes, assignment.kinds.clone(), false, tried) {
                    plans.push(plan);
                    break;
                }
            }
        }
        plans
    }

    /// Why all placements that were tried failed.
    fn reason(&self, deployed: &Deployed, tried: &[Tried]) -> Reason {
        let obstacles = || tried.iter().filter_map(|tried| tried.outcome.as_ref().err());
        let late = obstacles().filter_map(|obstacle| match obstacle {
            Obstacle::Late { end, .. } => Some(*end),
            _ => None,
        });
        if let Some(end) = late.min() {
            return Reason::Busy { end };
        }
        let full = obstacles().find_map(|obstacle| match obstacle {
            Obstacle::Full(node) => Some(Reason::Full(*node)),
            _ => None,
        });
        let dear = obstacles().find_map(|obstacle| match obstacle {
            Obstacle::Dear(cost) => Some(Reason::TooDear { cheapest: *cost }),
            _ => None,
        });
        full.or(dear).or_else(|| self.impossible(deployed)).unwrap_or(Reason::NoMemory)
    }

    /// The reason of the first stage that no node could run even on an idle cluster.
    fn impossible(&self, deployed: &Deployed) -> Option<Reason> {
        (0..deployed.functions.len()).find_map(|stage| {
            let able = self.nodes.iter().filter(|node| node.is_open()).filter_map(|node| {
                let cost = deployed.costs.get(stage, node.spec.kind)?;
                Some((cost.bytes, cost.bytes <= node.spec.bytes))
            });
            let able: Vec<(u64, bool)> = able.collect();
            match able.iter().map(|(bytes, _)| *bytes).min() {
                None => Some(Reason::NoDevices { stage }),
                Some(bytes) if !able.iter().any(|(_, fits)| *fits) => Some(Reason::TooLarge { stage, bytes }),
                Some(_) => None,
            }
        })
    }
}

/// The limits of a request.
#[derive(Clone, Copy)]
struct Limits {
    qualify: Qualify,
    now: u64,
    deadline: Option<Nanos>,
    price_max: Option<Cost>,
}

impl Limits {
    /// The bounds of its plans. With [`Qualify::Either`] plans have no bounds, because meeting one
    /// limit is enough; [`Limits::note`] checks them afterwards.
    fn bounds(self) -> Bounds {
        let is_bound = self.qualify == Qualify::Both;
        let bound = |limit: Option<u64>| limit.filter(|_| is_bound).unwrap_or(u64::MAX);
        Bounds {
            now: self.now,
            deadline: bound(self.deadline.map(|deadline| deadline.0)),
            price_max: bound(self.price_max.map(|price| price.0)),
        }
    }

    fn note(
        self,
        planned: Result<Plan, Obstacle>,
        nodes: Box<[NodeId]>,
        kinds: Box<[super::KindId]>,
        is_reused: bool,
        tried: &mut Vec<Tried>,
    ) -> Option<Plan> {
        let planned = planned.and_then(|plan| {
            let is_late = self.deadline.is_some_and(|deadline| plan.end > deadline.0);
            let is_dear = self.price_max.is_some_and(|price| plan.cost > price);
            match is_late && is_dear {
                true => Err(Obstacle::Late { stage: nodes.len() - 1, end: Nanos(plan.end) }),
                false => Ok(plan),
            }
        });
        let outcome = planned.as_ref().map(|plan| (Nanos(plan.end), plan.cost)).map_err(|obstacle| *obstacle);
        tried.push(Tried { is_reused, kinds, nodes, outcome });
        planned.ok()
    }
}

fn choose(mut plans: Vec<Plan>, prefer: Prefer, rng: &mut Rng) -> Option<Plan> {
    if plans.is_empty() {
        return None;
    }
    let best = match prefer {
        Prefer::Random => rng.below(plans.len() as u64) as usize,
        Prefer::Cost => (0..plans.len()).min_by_key(|&index| (plans[index].cost, plans[index].end))?,
        Prefer::Speed => (0..plans.len()).min_by_key(|&index| (plans[index].end, plans[index].cost))?,
    };
    Some(plans.swap_remove(best))
}

/// A random sample of up to `count` distinct indices of the ranges (Floyd's algorithm). With
/// `ends`, the first and the last index are added: the fastest and the cheapest assignment.
fn sample(ranges: &[Range<usize>; 2], count: usize, ends: bool, rng: &mut Rng) -> Vec<usize> {
    let total = ranges[0].len() + ranges[1].len();
    let nth = |at: usize| match at.checked_sub(ranges[0].len()) {
        None => ranges[0].start + at,
        Some(at) => ranges[1].start + at,
    };
    if total <= count {
        return (0..total).map(nth).collect();
    }
    let mut chosen: Vec<usize> = Vec::with_capacity(count + 2);
    for last in total - count..total {
        let at = rng.below(last as u64 + 1) as usize;
        chosen.push(if chosen.contains(&at) { last } else { at });
    }
    for end in [0, total - 1] {
        if ends && !chosen.contains(&end) {
            chosen.push(end);
        }
    }
    chosen.into_iter().map(nth).collect()
}

/// Why no assignment qualifies; `None` if the graph has no assignments.
fn none_qualifies(deployed: &Deployed, time: Option<Nanos>, price_max: Option<Cost>) -> Option<Reason> {
    let list = deployed.plans.list();
    let (fastest, cheapest) = (list.first()?, list.last()?);
    if time.is_some_and(|time| fastest.latency > time) {
        return Some(Reason::TooSlow { fastest: fastest.latency });
    }
    if price_max.is_some_and(|price| cheapest.cost > price) {
        return Some(Reason::TooDear { cheapest: cheapest.cost });
    }
    let affordable = list.iter().find(|plan| price_max.is_none_or(|price| plan.cost <= price)).unwrap_or(cheapest);
    Some(Reason::NoneIsBoth { latency: affordable.latency })
}
