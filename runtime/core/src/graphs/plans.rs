//! Phase one, once per graph: the assignments of stages to kinds of devices that are optimal in
//! latency and cost (thesis §4.2).
//!
//! Of the r^n assignments only the Pareto-optimal ones are kept. They are found without listing all
//! assignments: stages are assigned in order, and after each stage only the Pareto-optimal partial
//! assignments are kept. A partial assignment is described by three things: its cost; for each open
//! stage, the time at which its inputs from assigned stages are ready; and the last end of assigned
//! stages whose outputs no stage needs. The latency and cost of a completion depend on these
//! numbers only and never fall when one of them grows. So every completion of a dominated partial
//! assignment is dominated too, and dropping it loses no optimal assignment.

use super::costs::{CostTable, KindId};
use super::error::GraphError;
use super::graph::Graph;
use super::limits::PARTIALS_MAX;
use super::spec::Cost;
use crate::ids::Nanos;
use std::ops::Range;

/// An assignment of stages to kinds of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The kind of each stage.
    pub kinds: Box<[KindId]>,
    /// Time from the start to the last end if no stage waits for a device or its constants.
    pub latency: Nanos,
    /// Price of all runs. A request that skips stages costs less.
    pub cost: Cost,
}

/// The Pareto-optimal assignments of a graph, from the fastest to the cheapest: sorted by ascending
/// latency, which is also by descending cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plans {
    list: Vec<Assignment>,
    considered: u64,
}

/// Which assignments qualify for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Qualify {
    /// Those that meet the deadline and the price limit.
    #[default]
    Both,
    /// Those that meet the deadline or the price limit: the union that the thesis describes.
    Either,
}

/// A partial assignment.
struct Partial {
    cost: u64,
    /// The last end of assigned stages that no stage needs; then for each open stage (see
    /// [`open_stages`]) the time at which its inputs from assigned stages are ready.
    times: Vec<u64>,
    /// The index of its last choice in the trail.
    last: u32,
}

/// The choice of a kind for a stage. `before` is the trail index of the previous stage's choice.
struct Choice {
    before: u32,
    kind: KindId,
}

const NO_CHOICE: u32 = u32::MAX;

impl Plans {
    /// The optimal assignments.
    ///
    /// # Errors
    /// [`GraphError::TooComplex`] if more than [`PARTIALS_MAX`] partial assignments are optimal.
    pub fn new(graph: &Graph, costs: &CostTable) -> Result<Plans, GraphError> {
        let mut trail: Vec<Choice> = Vec::new();
        let mut partials = vec![Partial { cost: 0, times: vec![0], last: NO_CHOICE }];
        for stage in 0..graph.stages().len() {
            partials = optimal(extend(graph, costs, stage, &partials, &mut trail));
            if partials.len() > PARTIALS_MAX {
                return Err(GraphError::TooComplex);
            }
        }
        let complete = partials.iter().map(|partial| Assignment {
            kinds: kinds(&trail, partial.last, graph.stages().len()),
            latency: Nanos(partial.times[0]),
            cost: Cost(partial.cost),
        });
        Ok(Plans::of(complete.collect(), costs.assignments()))
    }

    /// The assignments of all stages to a single kind, for each kind that can run all stages, as in
    /// Clockwork.
    pub fn uniform(graph: &Graph, costs: &CostTable) -> Plans {
        let all = (0..costs.kinds().len()).filter_map(|kind| {
            let kinds = vec![KindId(kind as u8); graph.stages().len()].into_boxed_slice();
            let (latency, cost) = evaluate(graph, costs, &kinds)?;
            Some(Assignment { kinds, latency, cost })
        });
        let all: Vec<Assignment> = all.collect();
        let considered = all.len() as u64;
        Plans::of(all, considered)
    }

    fn of(mut list: Vec<Assignment>, considered: u64) -> Plans {
        list.sort_by(|a, b| (a.latency, a.cost, &a.kinds).cmp(&(b.latency, b.cost, &b.kinds)));
        let mut cheapest = None;
        list.retain(|assignment| {
            let is_cheaper = cheapest.is_none_or(|cheapest| assignment.cost < cheapest);
            if is_cheaper {
                cheapest = Some(assignment.cost);
            }
            is_cheaper
        });
        Plans { list, considered }
    }

    /// The assignments, from the fastest to the cheapest.
    pub fn list(&self) -> &[Assignment] {
        &self.list
    }

    /// Number of assignments from which the optimal ones were selected.
    pub fn considered(&self) -> u64 {
        self.considered
    }

    /// Indices of the assignments that qualify under a limit of time and of price; `None` is no
    /// limit. Found by binary search. If one range is enough, it is the second, and the first is
    /// empty.
    pub fn qualifying(&self, qualify: Qualify, time: Option<Nanos>, price: Option<Cost>) -> [Range<usize>; 2] {
        let fast = time.map_or(self.list.len(), |time| self.list.partition_point(|plan| plan.latency <= time));
        let cheap = price.map_or(0, |price| self.list.partition_point(|plan| plan.cost > price));
        match qualify {
            Qualify::Both => [0..0, cheap.min(fast)..fast],
            Qualify::Either if cheap <= fast => [0..0, 0..self.list.len()],
            Qualify::Either => [0..fast, cheap..self.list.len()],
        }
    }
}

/// Latency and cost of an assignment; `None` if a stage cannot run on its kind.
pub fn evaluate(graph: &Graph, costs: &CostTable, kinds: &[KindId]) -> Option<(Nanos, Cost)> {
    let mut ends = vec![0_u64; kinds.len()];
    let mut cost = 0;
    for (stage, &kind) in kinds.iter().enumerate() {
        let exec = costs.get(stage, kind)?.exec.0;
        let ready = graph.stages()[stage].needs.iter().map(|&needed| ends[needed]).max().unwrap_or(0);
        ends[stage] = ready + exec;
        cost += costs.price(kind, exec).0;
    }
    Some((Nanos(ends.into_iter().max().unwrap_or(0)), Cost(cost)))
}

/// The stages at or after `first` that need a stage before `first`.
fn open_stages(graph: &Graph, first: usize) -> Vec<usize> {
    let stages = graph.stages();
    (first..stages.len()).filter(|&stage| stages[stage].needs.iter().any(|&needed| needed < first)).collect()
}

/// Extends each partial assignment by each kind that can run `stage`.
fn extend(
    graph: &Graph,
    costs: &CostTable,
    stage: usize,
    partials: &[Partial],
    trail: &mut Vec<Choice>,
) -> Vec<Partial> {
    let (before, after) = (open_stages(graph, stage), open_stages(graph, stage + 1));
    let slot = |open: &[usize], of: usize| open.iter().position(|&stage| stage == of).map(|at| at + 1);
    let own = slot(&before, stage);
    // For each stage that is open afterwards: its slot before, and whether it needs this stage.
    let moves: Vec<(Option<usize>, bool)> =
        after.iter().map(|&open| (slot(&before, open), graph.stages()[open].needs.contains(&stage))).collect();
    let is_last = graph.stages()[stage].needed_by.is_empty();
    let mut extended = Vec::new();
    for partial in partials {
        let ready = own.map_or(0, |own| partial.times[own]);
        for (kind, cost) in costs.choices(stage) {
            let end = ready + cost.exec.0;
            let mut times = Vec::with_capacity(1 + moves.len());
            times.push(if is_last { partial.times[0].max(end) } else { partial.times[0] });
            times.extend(moves.iter().map(|&(old, needs)| {
                let old = old.map_or(0, |old| partial.times[old]);
                if needs { old.max(end) } else { old }
            }));
            trail.push(Choice { before: partial.last, kind });
            let last = trail.len() as u32 - 1;
            extended.push(Partial { cost: partial.cost + costs.price(kind, cost.exec.0).0, times, last });
        }
    }
    extended
}

/// The Pareto-optimal partial assignments; of equal ones the first.
fn optimal(mut partials: Vec<Partial>) -> Vec<Partial> {
    partials.sort_by(|a, b| (a.cost, &a.times, a.last).cmp(&(b.cost, &b.times, b.last)));
    let mut kept: Vec<Partial> = Vec::new();
    for partial in partials {
        // No kept one is dearer, so only times are compared. Recently kept ones tend to be the
        // fastest, so they are compared first.
        let is_worse = |kept: &Partial| kept.times.iter().zip(&partial.times).all(|(kept, time)| kept <= time);
        if !kept.iter().rev().any(is_worse) {
            kept.push(partial);
            if kept.len() > PARTIALS_MAX {
                break;
            }
        }
    }
    kept
}

fn kinds(trail: &[Choice], last: u32, stages: usize) -> Box<[KindId]> {
    let mut kinds = vec![KindId(0); stages];
    let mut at = last;
    for slot in kinds.iter_mut().rev() {
        let choice = &trail[at as usize];
        (*slot, at) = (choice.kind, choice.before);
    }
    kinds.into_boxed_slice()
}
