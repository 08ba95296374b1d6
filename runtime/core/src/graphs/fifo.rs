//! Baselines that admit every request and serve them in the order of arrival. With [`Fifo::new`]
//! each stage runs on the first idle node that can run it. With [`Fifo::whole_graphs`] a node runs
//! one request from its first stage to its last, like the naive Clockwork of the thesis.

use super::costs::CostTable;
use super::event::{Action, Arrival, Event, FunctionId, GraphId, NodeId, RequestId};
use super::explain::{Explanation, Verdict};
use super::graph::Graph;
use super::node::NodeSpec;
use super::progress::{Next, Progress};
use super::spec::Cost;
use crate::ids::Nanos;
use std::collections::{BTreeMap, BTreeSet};

struct Run {
    graph: usize,
    deadline: u64,
    progress: Progress,
    bill: u64,
    /// The node that runs all its stages, if graphs run as a whole.
    node: Option<usize>,
}

struct Node {
    spec: NodeSpec,
    is_lost: bool,
    /// Functions whose constants are resident, with their bytes, the least recently used first.
    resident: Vec<(FunctionId, u64)>,
    /// The stage that it loads constants for or runs, and the start of the run if it has begun.
    work: Option<(RequestId, usize, Option<u64>)>,
    /// The request that it runs, if graphs run as a whole.
    owner: Option<RequestId>,
}

/// First in, first out.
pub struct Fifo {
    is_whole: bool,
    nodes: Vec<Node>,
    graphs: Vec<(Graph, CostTable, Vec<FunctionId>)>,
    functions: BTreeMap<String, FunctionId>,
    runs: BTreeMap<RequestId, Run>,
    /// Stages that are ready, in the order of arrival. Requests are numbered in that order.
    ready: BTreeSet<(RequestId, usize)>,
}

impl Fifo {
    /// An empty queue for a cluster.
    pub fn new(nodes: &[NodeSpec]) -> Fifo {
        let node =
            |spec: &NodeSpec| Node { spec: *spec, is_lost: false, resident: Vec::new(), work: None, owner: None };
        Fifo {
            is_whole: false,
            nodes: nodes.iter().map(node).collect(),
            graphs: Vec::new(),
            functions: BTreeMap::new(),
            runs: BTreeMap::new(),
            ready: BTreeSet::new(),
        }
    }

    /// Like [`Fifo::new`], but one node runs all stages of a request. A graph whose constants fit
    /// no node never runs.
    pub fn whole_graphs(nodes: &[NodeSpec]) -> Fifo {
        Fifo { is_whole: true, ..Fifo::new(nodes) }
    }

    /// Deploys a graph.
    pub fn deploy(&mut self, graph: Graph, costs: CostTable) -> GraphId {
        let known = &mut self.functions;
        let function = |name: &String| {
            let next = FunctionId(known.len() as u32);
            *known.entry(name.clone()).or_insert(next)
        };
        let functions = graph.stages().iter().map(|stage| &stage.function).map(function).collect();
        self.graphs.push((graph, costs, functions));
        GraphId(self.graphs.len() as u32 - 1)
    }

    /// The function of a stage; `None` if there is no such stage.
    pub fn function(&self, graph: GraphId, stage: usize) -> Option<FunctionId> {
        self.graphs.get(graph.0 as usize)?.2.get(stage).copied()
    }

    /// Handles an event and returns the actions for the driver, in order. Requests must be numbered
    /// in the order of their arrival.
    ///
    /// # Panics
    /// If a run ends on an idle node.
    pub fn handle(&mut self, event: Event, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Arrived(arrival) => self.arrive(arrival, now, &mut actions),
            Event::Loaded { node, .. } => self.loaded(node, now.0, &mut actions),
            Event::Ended { node } => self.end(node, now.0, &mut actions),
            Event::Decided { request, stage, runs } => self.settle(request, now.0, &mut actions, |run, graph, next| {
                run.progress.decided(graph, stage, runs, next);
            }),
            Event::Cancelled { request } => {
                self.forget(request);
            }
            Event::Lost { node } => self.lose(node, &mut actions),
            Event::Tick => {}
        }
        self.start(now.0, &mut actions);
        actions
    }

    fn arrive(&mut self, arrival: Arrival, now: Nanos, actions: &mut Vec<Action>) {
        let mut explanation = Explanation::new(arrival, now);
        let Some((graph, ..)) = self.graphs.get(arrival.graph.0 as usize) else {
            return actions.push(Action::Rejected(Box::new(explanation)));
        };
        let own = graph.deadline().map(|after| Nanos(now.0.saturating_add(after.0)));
        let deadline = arrival.deadline.or(own).map_or(u64::MAX, |deadline| deadline.0);
        let end = Nanos(u64::MAX);
        explanation.verdict = Verdict::Admitted { is_reused: false, end, cost: Cost(0), stages: Vec::new() };
        actions.push(Action::Admitted(Box::new(explanation)));
        let (progress, next) = Progress::new(graph);
        let run = Run { graph: arrival.graph.0 as usize, deadline, progress, bill: 0, node: None };
        self.runs.insert(arrival.request, run);
        self.proceed(arrival.request, &next, actions);
    }

    fn proceed(&mut self, request: RequestId, next: &[Next], actions: &mut Vec<Action>) {
        for next in next {
            match *next {
                Next::Decide(stage) => actions.push(Action::Decide { request, stage }),
                Next::Run(stage) => drop(self.ready.insert((request, stage))),
            }
        }
    }

    fn settle(
        &mut self,
        request: RequestId,
        now: u64,
        actions: &mut Vec<Action>,
        change: impl FnOnce(&mut Run, &Graph, &mut Vec<Next>),
    ) {
        let Some(run) = self.runs.get_mut(&request) else { return };
        let mut next = Vec::new();
        change(run, &self.graphs[run.graph].0, &mut next);
        if run.progress.is_done() {
            let (bill, is_late) = (Cost(run.bill), now > run.deadline);
            self.forget(request);
            actions.push(Action::Finished { request, bill, is_late });
        }
        self.proceed(request, &next, actions);
    }

    fn loaded(&mut self, id: NodeId, now: u64, actions: &mut Vec<Action>) {
        let node = &mut self.nodes[usize::from(id.0)];
        match node.work {
            Some((request, _, _)) if !self.runs.contains_key(&request) => node.work = None,
            Some((request, stage, ref mut started)) => {
                *started = Some(now);
                actions.push(Action::Start { node: id, batch: vec![(request, stage)] });
            }
            None => {}
        }
    }

    fn end(&mut self, id: NodeId, now: u64, actions: &mut Vec<Action>) {
        let node = &mut self.nodes[usize::from(id.0)];
        if node.is_lost {
            return;
        }
        let (request, stage, started) = node.work.take().expect("only a node with work ends it");
        let (kind, took) = (node.spec.kind, started.map_or(0, |started| now - started));
        let Some(run) = self.runs.get_mut(&request) else { return };
        run.bill = run.bill.saturating_add(self.graphs[run.graph].1.price(kind, took).0);
        self.settle(request, now, actions, |run, graph, next| run.progress.ended(graph, stage, next));
    }

    fn lose(&mut self, id: NodeId, actions: &mut Vec<Action>) {
        let node = &mut self.nodes[usize::from(id.0)];
        node.is_lost = true;
        node.resident.clear();
        let running = node.work.take().map(|(request, ..)| request);
        if let Some(request) = running.or(node.owner)
            && self.forget(request)
        {
            actions.push(Action::Failed { request, node: id });
        }
    }

    /// Removes a request. Returns whether it was running.
    fn forget(&mut self, request: RequestId) -> bool {
        self.ready.retain(|(of, _)| *of != request);
        let run = self.runs.remove(&request);
        if let Some(node) = run.as_ref().and_then(|run| run.node) {
            self.nodes[node].owner = None;
        }
        run.is_some()
    }

    /// Whether a node can run a stage once it is idle.
    fn may_run(&self, index: usize, request: RequestId, stage: usize) -> bool {
        let (node, run) = (&self.nodes[index], &self.runs[&request]);
        let (_, costs, functions) = &self.graphs[run.graph];
        let fits = |stage: usize| costs.get(stage, node.spec.kind).filter(|cost| cost.bytes <= node.spec.bytes);
        if !self.is_whole {
            return fits(stage).is_some();
        }
        if run.node.is_some() || node.owner.is_some() {
            return run.node == Some(index);
        }
        let bytes: Option<u64> = (0..functions.len()).map(|stage| fits(stage).map(|cost| cost.bytes)).sum();
        bytes.is_some_and(|bytes| bytes <= node.spec.bytes)
    }

    fn start(&mut self, now: u64, actions: &mut Vec<Action>) {
        if self.nodes.iter().all(|node| node.work.is_some() || node.is_lost) {
            return;
        }
        let waiting: Vec<(RequestId, usize)> = self.ready.iter().copied().collect();
        for (request, stage) in waiting {
            if self.nodes.iter().all(|node| node.work.is_some() || node.is_lost) {
                return;
            }
            let (_, costs, functions) = &self.graphs[self.runs[&request].graph];
            let function = functions[stage];
            let can = |index: &usize| {
                let node = &self.nodes[*index];
                node.work.is_none() && !node.is_lost && self.may_run(*index, request, stage)
            };
            let is_there = |index: &usize| self.nodes[*index].resident.iter().any(|(on_it, _)| *on_it == function);
            let all = 0..self.nodes.len();
            let warm = all.clone().find(|index| can(index) && is_there(index));
            let Some(index) = warm.or_else(|| all.clone().find(can)) else {
                // Whole graphs are placed strictly in the order of arrival.
                if self.is_whole && self.runs[&request].node.is_none() {
                    return;
                }
                continue;
            };
            self.ready.remove(&(request, stage));
            if self.is_whole {
                self.nodes[index].owner = Some(request);
                self.runs.entry(request).and_modify(|run| run.node = Some(index));
            }
            let (node, id) = (&mut self.nodes[index], NodeId(index as u16));
            let bytes = costs.get(stage, node.spec.kind).map_or(0, |cost| cost.bytes);
            node.resident.retain(|(on_it, _)| *on_it != function);
            let mut used: u64 = node.resident.iter().map(|(_, bytes)| bytes).sum();
            while used + bytes > node.spec.bytes {
                let (victim, freed) = node.resident.remove(0);
                used -= freed;
                actions.push(Action::Unload { node: id, function: victim });
            }
            node.resident.push((function, bytes));
            node.work = Some((request, stage, warm.map(|_| now)));
            actions.push(match warm {
                Some(_) => Action::Start { node: id, batch: vec![(request, stage)] },
                None => Action::Load { node: id, function },
            });
        }
    }
}
