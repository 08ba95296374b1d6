//! Trial plans: where and when the stages of a request would run. Planning changes no state.

use super::costs::{CostTable, KindId};
use super::event::{FunctionId, NodeId};
use super::explain::{Obstacle, PlannedStage, Verdict};
use super::graph::Graph;
use super::limits::RESERVATIONS_MAX;
use super::node::Node;
use super::plans::Assignment;
use super::spec::Cost;
use super::timeline::{Draft, Need};
use crate::ids::Nanos;

/// A deployed graph.
pub(super) struct Deployed {
    pub(super) graph: Graph,
    pub(super) costs: CostTable,
    pub(super) plans: super::Plans,
    /// The function of each stage.
    pub(super) functions: Vec<FunctionId>,
    /// Placements of earlier requests, the most recent first.
    pub(super) placements: Vec<Box<[NodeId]>>,
    pub(super) is_removed: bool,
}

/// How stages are spread over nodes of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// Places the stages from the smallest function to the largest. Starts on the node with the
    /// most free memory, and takes the next node when it is full (thesis §4.2).
    ByMemory,
    /// Places the stages in order, each on the node that is free soonest; a node without the
    /// stage's constants counts as busy while it loads them.
    ByTime,
}

/// The bounds that a plan must keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) now: u64,
    pub(super) deadline: u64,
    pub(super) price_max: u64,
}

/// A plan that keeps the bounds.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) nodes: Box<[NodeId]>,
    pub(super) drafts: Vec<Draft>,
    pub(super) end: u64,
    pub(super) cost: Cost,
    pub(super) is_reused: bool,
}

impl Plan {
    /// The verdict that admits a request by this plan.
    pub(super) fn verdict(&self) -> Verdict {
        let planned = |draft: &Draft| PlannedStage {
            node: NodeId(draft.node as u16),
            start: Nanos(draft.start),
            end: Nanos(draft.end),
            batch: draft.batch,
            is_cold: draft.is_cold,
        };
        let stages = self.drafts.iter().map(planned).collect();
        Verdict::Admitted { is_reused: self.is_reused, end: Nanos(self.end), cost: self.cost, stages }
    }
}

/// The indices of the nodes that accept new requests, by kind.
pub(super) fn nodes_by_kind(nodes: &[Node], kinds: usize) -> Vec<Vec<usize>> {
    let mut by_kind = vec![Vec::new(); kinds];
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| node.is_open()) {
        by_kind[usize::from(node.spec.kind.0)].push(index);
    }
    by_kind
}

/// Chooses a node of the assigned kind for each stage.
///
/// # Errors
/// [`Obstacle::NoMemory`] with the first stage for which no node has enough memory.
pub(super) fn place(
    deployed: &Deployed,
    assignment: &Assignment,
    nodes: &[Node],
    by_kind: &[Vec<usize>],
    spread: Spread,
) -> Result<Box<[NodeId]>, Obstacle> {
    let cost = |stage: usize| deployed.costs.get(stage, assignment.kinds[stage]).copied().unwrap_or_default();
    let mut order: Vec<usize> = (0..assignment.kinds.len()).collect();
    if spread == Spread::ByMemory {
        order.sort_by_key(|&stage| (cost(stage).bytes, stage));
    }
    let mut chosen = vec![NodeId(u16::MAX); order.len()];
    // Per node: the bytes and the time that the stages placed so far take.
    let mut taken: Vec<(u64, u64)> = vec![(0, 0); nodes.len()];
    for (at, &stage) in order.iter().enumerate() {
        let (function, cost) = (deployed.functions[stage], cost(stage));
        let same: Vec<NodeId> = order[..at]
            .iter()
            .filter(|&&other| deployed.functions[other] == function)
            .map(|&other| chosen[other])
            .collect();
        let extra = |index: usize| match same.contains(&NodeId(index as u16)) {
            true => 0,
            false => nodes[index].needed_bytes(function, cost.bytes),
        };
        let has_room = |&index: &usize| {
            let free = nodes[index].free_bytes().saturating_sub(taken[index].0);
            cost.bytes <= free || extra(index) <= free
        };
        let busy = |index: usize| {
            let reserved: u64 = nodes[index].timeline.list.last().map_or(0, |last| last.end);
            let pre = if nodes[index].resident.contains_key(&function) { 0 } else { cost.pre.0 };
            reserved.saturating_add(taken[index].1).saturating_add(pre)
        };
        let candidates = by_kind[usize::from(assignment.kinds[stage].0)].iter().copied().filter(has_room);
        let found = match spread {
            Spread::ByMemory => candidates.max_by_key(|&index| {
                let left = nodes[index].free_bytes() - taken[index].0;
                // A node that has stages of this graph already is filled first.
                (taken[index].1 > 0, left, std::cmp::Reverse(index))
            }),
            Spread::ByTime => candidates.min_by_key(|&index| (busy(index), index)),
        };
        let index = found.ok_or(Obstacle::NoMemory { stage })?;
        taken[index].0 += extra(index);
        taken[index].1 += cost.exec.0.max(1);
        chosen[stage] = NodeId(index as u16);
    }
    Ok(chosen.into_boxed_slice())
}

/// Plans the stages on their nodes, or returns the first obstacle.
pub(super) fn plan(
    deployed: &Deployed,
    placement: Box<[NodeId]>,
    nodes: &[Node],
    bounds: Bounds,
    is_reused: bool,
) -> Result<Plan, Obstacle> {
    check_memory(deployed, &placement, nodes)?;
    let mut loads = Loads { deployed, nodes, placement: &placement, now: bounds.now, planned: Vec::new() };
    let mut drafts: Vec<Draft> = Vec::with_capacity(placement.len());
    let (mut cost, mut end) = (0_u64, 0_u64);
    for (stage, &id) in placement.iter().enumerate() {
        let index = usize::from(id.0);
        let node = &nodes[index];
        if node.timeline.list.len() + drafts.len() >= RESERVATIONS_MAX {
            return Err(Obstacle::Full(id));
        }
        let spec = &deployed.graph.stages()[stage];
        let table = deployed.costs.get(stage, node.spec.kind).ok_or(Obstacle::NoMemory { stage })?;
        let (loaded, is_cold) = loads.ready(stage, index).ok_or(Obstacle::NoMemory { stage })?;
        let inputs = spec.needs.iter().map(|&needed| drafts[needed].end).max().unwrap_or(bounds.now);
        let need = Need {
            function: deployed.functions[stage],
            ready: inputs.max(loaded),
            takes: table.exec.0,
            batch_max: spec.batch_max,
        };
        let draft = Draft { is_cold, loaded, ..node.timeline.fit(index, need, &drafts) };
        if draft.end > bounds.deadline {
            return Err(Obstacle::Late { stage, end: Nanos(draft.end) });
        }
        cost += deployed.costs.price(node.spec.kind, table.exec.0).0;
        end = end.max(draft.end);
        drafts.push(draft);
    }
    if cost > bounds.price_max {
        return Err(Obstacle::Dear(Cost(cost)));
    }
    Ok(Plan { nodes: placement, drafts, end, cost: Cost(cost), is_reused })
}

/// Whether each node has room for all functions of the placement together.
fn check_memory(deployed: &Deployed, placement: &[NodeId], nodes: &[Node]) -> Result<(), Obstacle> {
    let functions = &deployed.functions;
    for (stage, &id) in placement.iter().enumerate() {
        let node = &nodes[usize::from(id.0)];
        let mut needed = 0_u64;
        for other in 0..=stage {
            let is_first = !(0..other).any(|before| placement[before] == id && functions[before] == functions[other]);
            if placement[other] == id && is_first {
                let table = deployed.costs.get(other, node.spec.kind).ok_or(Obstacle::NoMemory { stage })?;
                needed = needed.saturating_add(node.needed_bytes(functions[other], table.bytes));
            }
        }
        if !node.is_open() || needed > node.free_bytes() {
            return Err(Obstacle::NoMemory { stage });
        }
    }
    Ok(())
}

/// When the constants of the stages of one plan are loaded.
struct Loads<'a> {
    deployed: &'a Deployed,
    nodes: &'a [Node],
    placement: &'a [NodeId],
    now: u64,
    /// Planned loads: node, function, bytes of its constants, and the time at which the load ends.
    planned: Vec<(usize, FunctionId, u64, u64)>,
}

impl Loads<'_> {
    /// The time at which the constants of a stage are loaded, and whether this plan loads them;
    /// `None` if the stage cannot run on the node. A node loads one function at a time.
    fn ready(&mut self, stage: usize, index: usize) -> Option<(u64, bool)> {
        let (node, function) = (&self.nodes[index], self.deployed.functions[stage]);
        if let Some(resident) = node.resident.get(&function) {
            return Some((if resident.is_loaded { self.now } else { resident.ready.max(self.now) }, false));
        }
        let known = self.planned.iter().find(|(at, planned, ..)| *at == index && *planned == function);
        if let Some(&(.., ready)) = known {
            return Some((ready, true));
        }
        let table = self.deployed.costs.get(stage, node.spec.kind)?;
        let here = self.planned.iter().filter(|(at, ..)| *at == index);
        let (bytes, after) = here
            .fold((table.bytes, self.now.max(node.loads_until)), |(bytes, after), (.., more, ready)| {
                (bytes + more, after.max(*ready))
            });
        let is_planned = |function: FunctionId| {
            let on_it = self.placement.iter().zip(&self.deployed.functions);
            on_it.into_iter().any(|(id, planned)| usize::from(id.0) == index && *planned == function)
        };
        let ready = after + node.unload_ns(bytes, is_planned) + table.pre.0;
        self.planned.push((index, function, table.bytes, ready));
        Some((ready, true))
    }
}

/// The kinds of a placement.
pub(super) fn kinds_of(placement: &[NodeId], nodes: &[Node]) -> Box<[KindId]> {
    placement.iter().map(|id| nodes[usize::from(id.0)].spec.kind).collect()
}
