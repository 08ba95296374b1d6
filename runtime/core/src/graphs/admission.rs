//! Phase two: admits requests, reserves nodes for them, and starts their stages (thesis §4.2).
//!
//! The admission first tries the placements of earlier requests whose constants are resident. A
//! stage joins a waiting run of the same function as a batch if no admitted deadline is missed. If
//! no earlier placement works, the admission takes a sample of the optimal assignments that
//! qualify, places each on nodes by memory, and plans it with its load times. If no plan keeps the
//! deadline and the price limit, the request is rejected at once.
//!
//! Differences from the thesis, each an option: assignments must meet both limits; stages that can
//! run at the same time go to different nodes; the best plan is taken instead of a random one. All
//! graphs that call a function share its constants, which stay resident until other functions need
//! the memory.

use super::costs::{CostTable, Kind};
use super::error::GraphError;
use super::event::{Action, Arrival, Event, FunctionId, GraphId, NodeId, RequestId};
use super::graph::Graph;
use super::limits::{PLACEMENTS_MAX, SAMPLE_MAX, START_SCAN_MAX};
use super::node::{Node, NodeSpec, Resident};
use super::planner::{Deployed, Plan};
use super::plans::{Plans, Qualify};
use super::progress::{Next, Progress, StageState};
use super::room::Room;
use super::spec::{Cost, Prefer};
use super::timeline::Reservation;
use crate::ids::Nanos;
use crate::rng::Rng;
use foldhash::fast::FixedState;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Options of the admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// How many assignments a decision tries, at most [`SAMPLE_MAX`].
    pub sample: usize,
    /// Which assignments qualify.
    pub qualify: Qualify,
    /// How to choose among plans, for graphs without a preference of their own.
    pub prefer: Prefer,
    /// Whether stages that can run at the same time may be spread over nodes of their kind. The
    /// thesis fills one node after the other.
    pub spreads: bool,
    /// Whether all stages of a graph run on one kind of device, as in Clockwork.
    pub is_uniform: bool,
    /// Seed of the sample.
    pub seed: u64,
}

impl Default for AdmissionConfig {
    fn default() -> AdmissionConfig {
        AdmissionConfig {
            sample: 8,
            qualify: Qualify::Both,
            prefer: Prefer::Cost,
            spreads: true,
            is_uniform: false,
            seed: 0,
        }
    }
}

impl AdmissionConfig {
    /// The algorithm as the thesis describes it.
    pub fn thesis(seed: u64) -> AdmissionConfig {
        AdmissionConfig { qualify: Qualify::Either, prefer: Prefer::Random, spreads: false, seed, ..Self::default() }
    }

    /// The thesis' naive Clockwork: whole graphs on one kind of device.
    pub fn clockwork() -> AdmissionConfig {
        AdmissionConfig { prefer: Prefer::Speed, spreads: false, is_uniform: true, ..Self::default() }
    }
}

/// An admitted request that has not ended.
pub(super) struct Run {
    graph: GraphId,
    deadline: u64,
    progress: Progress,
    nodes: Box<[NodeId]>,
    bill: u64,
}

/// The admission and the schedule of a cluster.
pub struct Admission {
    pub(super) config: AdmissionConfig,
    kinds: Vec<Kind>,
    pub(super) nodes: Vec<Node>,
    pub(super) graphs: Vec<Deployed>,
    functions: BTreeMap<String, FunctionId>,
    next_function: u32,
    pub(super) runs: HashMap<RequestId, Run, FixedState>,
    pub(super) rng: Rng,
}

impl Admission {
    /// The admission of a cluster of nodes, each of one of the kinds.
    ///
    /// # Panics
    /// If a node has a kind that is not in the list.
    pub fn new(config: AdmissionConfig, kinds: Vec<Kind>, nodes: &[NodeSpec]) -> Admission {
        let known = |node: &NodeSpec| usize::from(node.kind.0) < kinds.len();
        assert!(nodes.iter().all(known), "each node has a kind of the list");
        let config = AdmissionConfig { sample: config.sample.clamp(1, SAMPLE_MAX), ..config };
        Admission {
            config,
            kinds,
            nodes: nodes.iter().map(|node| Node::new(*node)).collect(),
            graphs: Vec::new(),
            functions: BTreeMap::new(),
            next_function: 0,
            runs: HashMap::default(),
            rng: Rng::new(config.seed),
        }
    }

    /// Deploys a graph: finds its optimal assignments, which may take seconds.
    ///
    /// # Errors
    /// [`GraphError::OtherKinds`] if the table has other kinds of devices than the cluster;
    /// [`GraphError::TooComplex`] if too many partial assignments are optimal.
    pub fn deploy(&mut self, graph: Graph, costs: CostTable) -> Result<GraphId, GraphError> {
        let plans = self.room().plans(&graph, &costs)?;
        self.deploy_planned(graph, costs, plans)
    }

    /// Deploys a graph whose optimal assignments were found with [`Admission::room`].
    ///
    /// # Errors
    /// [`GraphError::OtherKinds`] if the table has other kinds of devices than the cluster.
    pub fn deploy_planned(&mut self, graph: Graph, costs: CostTable, plans: Plans) -> Result<GraphId, GraphError> {
        if costs.kinds() != self.kinds {
            return Err(GraphError::OtherKinds);
        }
        let (known, next) = (&mut self.functions, &mut self.next_function);
        let function = |name: &String| {
            *known.entry(name.clone()).or_insert_with(|| {
                *next += 1;
                FunctionId(*next - 1)
            })
        };
        let functions = graph.stages().iter().map(|stage| &stage.function).map(function).collect();
        let deployed = Deployed { graph, costs, plans, functions, placements: Vec::new(), is_removed: false };
        // The index of a removed graph is reused once its requests have ended.
        let is_free = |(at, old): &(usize, &Deployed)| {
            old.is_removed && !self.runs.values().any(|run| run.graph.0 as usize == *at)
        };
        match self.graphs.iter().enumerate().find(is_free).map(|(at, _)| at) {
            Some(at) => {
                self.graphs[at] = deployed;
                Ok(GraphId(at as u32))
            }
            None => {
                self.graphs.push(deployed);
                Ok(GraphId(self.graphs.len() as u32 - 1))
            }
        }
    }

    /// Replaces the costs of a graph by newer ones, and finds its optimal assignments again.
    /// Admitted requests keep their reservations. Ignored if there is no such graph.
    ///
    /// # Errors
    /// As [`Admission::deploy`]; the old costs then stay.
    pub fn update(&mut self, graph: GraphId, costs: CostTable) -> Result<(), GraphError> {
        let Some(deployed) = self.graphs.get(graph.0 as usize) else { return Ok(()) };
        let plans = self.room().plans(&deployed.graph, &costs)?;
        self.update_planned(graph, costs, plans)
    }

    /// Like [`Admission::update`], with assignments that were found with [`Admission::room`].
    ///
    /// # Errors
    /// As [`Admission::deploy_planned`]; the old costs then stay.
    pub fn update_planned(&mut self, graph: GraphId, costs: CostTable, plans: Plans) -> Result<(), GraphError> {
        if costs.kinds() != self.kinds {
            return Err(GraphError::OtherKinds);
        }
        if let Some(deployed) = self.graphs.get_mut(graph.0 as usize) {
            (deployed.costs, deployed.plans) = (costs, plans);
        }
        Ok(())
    }

    /// Drains a node, or ends its draining. A drained node gets no new requests and keeps its
    /// admitted ones. Optimal assignments do not change until [`Admission::update`]; until then,
    /// plans that would use the node fail.
    pub fn set_drained(&mut self, node: NodeId, is_drained: bool) {
        self.node(node).is_drained = is_drained;
    }

    /// The memory of the nodes that accept new requests.
    pub fn room(&self) -> Room {
        Room::of(&self.nodes, self.kinds.len(), self.config.is_uniform)
    }

    /// Records that the constants of a stage's function became resident on a node without a load of
    /// this admission. Ignored if they are known already, or do not fit.
    pub fn resident(&mut self, graph: GraphId, stage: usize, node: NodeId, now: Nanos) {
        let Some(deployed) = self.graphs.get(graph.0 as usize) else { return };
        let (Some(&function), Some(on)) = (deployed.functions.get(stage), self.nodes.get_mut(usize::from(node.0)))
        else {
            return;
        };
        if let Some(cost) = deployed.costs.get(stage, on.spec.kind) {
            let (bytes, post) = (cost.bytes, cost.post.0);
            on.found(function, Resident { bytes, post, pins: 0, ready: now.0, is_loaded: true, used: now.0 });
        }
    }

    /// Removes a graph: rejects further requests to it; admitted requests still run to their end.
    pub fn remove(&mut self, graph: GraphId) {
        let Some(deployed) = self.graphs.get_mut(graph.0 as usize) else { return };
        deployed.is_removed = true;
        deployed.placements = Vec::new();
        let live: HashSet<FunctionId> =
            self.graphs.iter().filter(|graph| !graph.is_removed).flat_map(|graph| graph.functions.clone()).collect();
        self.functions.retain(|_, function| live.contains(function));
        for node in &mut self.nodes {
            node.forget(|function| !live.contains(&function));
        }
    }

    /// The optimal assignments of a graph; `None` if there is no such graph.
    pub fn plans(&self, graph: GraphId) -> Option<&Plans> {
        self.graphs.get(graph.0 as usize).map(|deployed| &deployed.plans)
    }

    /// The function of a stage; `None` if there is no such stage.
    pub fn function(&self, graph: GraphId, stage: usize) -> Option<FunctionId> {
        self.graphs.get(graph.0 as usize)?.functions.get(stage).copied()
    }

    /// Number of admitted requests that have not ended.
    pub fn running(&self) -> usize {
        self.runs.len()
    }

    /// When the next [`Event::Tick`] is needed, unless another event comes first.
    pub fn wake_at(&self) -> Option<Nanos> {
        self.nodes.iter().map(|node| node.wake).min().filter(|wake| *wake < u64::MAX).map(Nanos)
    }

    /// Handles an event and returns the actions for the driver, in order.
    ///
    /// # Panics
    /// If the driver reports the end of a run on an idle node, or a condition that was not
    /// requested.
    pub fn handle(&mut self, event: Event, now: Nanos) -> Vec<Action> {
        let (mut actions, mut touched) = (Vec::new(), Vec::new());
        match event {
            Event::Arrived(arrival) => self.arrive(arrival, now.0, &mut touched, &mut actions),
            Event::Loaded { node, function } => {
                // The function may have been unloaded again, or the node lost.
                if let Some(resident) = self.node(node).resident.get_mut(&function) {
                    resident.is_loaded = true;
                }
                touched.push(node);
            }
            Event::Ended { node } => self.end(node, now.0, &mut touched, &mut actions),
            Event::Decided { request, stage, runs } => {
                self.decided(request, stage, runs, now.0, &mut touched, &mut actions);
            }
            Event::Cancelled { request } => self.withdraw_all(request, now.0, &mut touched),
            Event::Lost { node } => self.lose(node, now.0, &mut touched, &mut actions),
            Event::Tick => {
                let due = |(_, node): &(usize, &Node)| node.wake <= now.0;
                touched.extend(self.nodes.iter().enumerate().filter(due).map(|(index, _)| NodeId(index as u16)));
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for node in touched {
            self.start_next(node, now.0, &mut actions);
        }
        actions
    }

    fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[usize::from(id.0)]
    }

    fn arrive(&mut self, arrival: Arrival, now: u64, touched: &mut Vec<NodeId>, actions: &mut Vec<Action>) {
        for node in &mut self.nodes {
            node.timeline.catch_up(now);
        }
        let (mut explanation, plan) = self.decide(arrival, now);
        let Some(plan) = plan else { return actions.push(Action::Rejected(Box::new(explanation))) };
        explanation.verdict = plan.verdict();
        let deadline = explanation.deadline.map_or(u64::MAX, |deadline| deadline.0);
        actions.push(Action::Admitted(Box::new(explanation)));
        self.reserve(arrival, &plan, deadline, now, actions);
        touched.extend(plan.nodes.iter());
        let (progress, next) = Progress::new(&self.graphs[arrival.graph.0 as usize].graph);
        let run = Run { graph: arrival.graph, deadline, progress, nodes: plan.nodes.clone(), bill: 0 };
        self.runs.insert(arrival.request, run);
        self.proceed(arrival.request, &next, touched, actions);
        let placements = &mut self.graphs[arrival.graph.0 as usize].placements;
        placements.retain(|placement| *placement != plan.nodes);
        placements.truncate(PLACEMENTS_MAX - 1);
        placements.insert(0, plan.nodes);
    }

    /// Makes the reservations and loads of a plan.
    fn reserve(&mut self, arrival: Arrival, plan: &Plan, deadline: u64, now: u64, actions: &mut Vec<Action>) {
        let deployed = &self.graphs[arrival.graph.0 as usize];
        let stages = deployed.graph.stages();
        let latest_end = |stage: usize| {
            let after = stages[stage].needed_by.iter().map(|&after| plan.drafts[after].start);
            after.min().unwrap_or(u64::MAX).min(deadline)
        };
        // Resident constants are pinned first, so that loads do not unload them.
        let mut order: Vec<usize> = (0..plan.drafts.len()).collect();
        order.sort_by_key(|&stage| plan.drafts[stage].is_cold);
        for stage in order {
            let draft = plan.drafts[stage];
            let node = &mut self.nodes[draft.node];
            let table = deployed.costs.get(stage, node.spec.kind).expect("a plan has costs on its nodes");
            let new = Resident {
                bytes: table.bytes,
                post: table.post.0,
                pins: 0,
                ready: draft.loaded,
                is_loaded: false,
                used: now,
            };
            node.pin(NodeId(draft.node as u16), deployed.functions[stage], new, actions);
        }
        // Joins come first: the plan's indices of reservations are valid until an insertion.
        for (stage, draft) in plan.drafts.iter().enumerate() {
            let Some(joined) = draft.joins else { continue };
            let reservation = &mut self.nodes[draft.node].timeline.list[joined];
            reservation.members.push((arrival.request, stage));
            reservation.end = draft.end;
            reservation.latest_end = reservation.latest_end.min(latest_end(stage));
        }
        for (stage, draft) in plan.drafts.iter().enumerate().filter(|(_, draft)| draft.joins.is_none()) {
            let kind = self.nodes[draft.node].spec.kind;
            let table = deployed.costs.get(stage, kind).expect("a plan has costs on its nodes");
            self.nodes[draft.node].timeline.insert(Reservation {
                function: deployed.functions[stage],
                start: draft.start,
                end: draft.end,
                due: draft.start,
                latest_end: latest_end(stage),
                batch_max: stages[stage].batch_max,
                batch_step: table.batch_step.0,
                members: vec![(arrival.request, stage)],
                orphans: 0,
                is_running: false,
            });
        }
    }

    /// Requests the evaluation of conditions, and collects the nodes of stages that became ready.
    fn proceed(&self, request: RequestId, next: &[Next], touched: &mut Vec<NodeId>, actions: &mut Vec<Action>) {
        let run = &self.runs[&request];
        for next in next {
            match *next {
                Next::Decide(stage) => actions.push(Action::Decide { request, stage }),
                Next::Run(stage) => touched.push(run.nodes[stage]),
            }
        }
    }

    fn end(&mut self, id: NodeId, now: u64, touched: &mut Vec<NodeId>, actions: &mut Vec<Action>) {
        touched.push(id);
        let node = self.node(id);
        if node.is_lost {
            return;
        }
        let is_running = node.timeline.list.first().is_some_and(|first| first.is_running);
        assert!(is_running, "{id} is idle, so nothing can end on it");
        let ended = node.timeline.list.remove(0);
        let (took, kind) = (now - node.started, node.spec.kind);
        let served = ended.members.len() + ended.orphans;
        for _ in 0..served {
            node.unpin(ended.function, now);
        }
        let share = took / (served as u64).max(1);
        for (request, stage) in ended.members {
            let run = self.runs.get_mut(&request).expect("runs serve only requests that have not ended");
            let deployed = &self.graphs[run.graph.0 as usize];
            run.bill = run.bill.saturating_add(deployed.costs.price(kind, share).0);
            let mut next = Vec::new();
            run.progress.ended(&deployed.graph, stage, &mut next);
            self.proceed(request, &next, touched, actions);
            self.finish(request, now, actions);
        }
    }

    fn decided(
        &mut self,
        request: RequestId,
        stage: usize,
        runs: bool,
        now: u64,
        touched: &mut Vec<NodeId>,
        actions: &mut Vec<Action>,
    ) {
        // The request may have been cancelled in the meantime.
        let Some(run) = self.runs.get_mut(&request) else { return };
        let mut next = Vec::new();
        run.progress.decided(&self.graphs[run.graph.0 as usize].graph, stage, runs, &mut next);
        if !runs {
            let id = run.nodes[stage];
            let node = &mut self.nodes[usize::from(id.0)];
            if let Some(function) = node.timeline.withdraw(request, stage) {
                node.unpin(function, now);
            }
            touched.push(id);
        }
        self.proceed(request, &next, touched, actions);
        self.finish(request, now, actions);
    }

    fn finish(&mut self, request: RequestId, now: u64, actions: &mut Vec<Action>) {
        if !self.runs[&request].progress.is_done() {
            return;
        }
        if let Some(run) = self.runs.remove(&request) {
            actions.push(Action::Finished { request, bill: Cost(run.bill), is_late: now > run.deadline });
        }
    }

    /// Ends a request and withdraws its reservations. Runs in progress continue.
    fn withdraw_all(&mut self, request: RequestId, now: u64, touched: &mut Vec<NodeId>) {
        let Some(run) = self.runs.remove(&request) else { return };
        for (stage, &id) in run.nodes.iter().enumerate() {
            if matches!(run.progress.state(stage), StageState::Ended | StageState::Skipped) {
                continue;
            }
            let node = self.node(id);
            if let Some(function) = node.timeline.withdraw(request, stage) {
                node.unpin(function, now);
            }
            touched.push(id);
        }
    }

    fn lose(&mut self, id: NodeId, now: u64, touched: &mut Vec<NodeId>, actions: &mut Vec<Action>) {
        self.node(id).lose();
        let needs = |run: &Run| {
            let is_open = |stage| !matches!(run.progress.state(stage), StageState::Ended | StageState::Skipped);
            run.nodes.iter().enumerate().any(|(stage, node)| *node == id && is_open(stage))
        };
        let mut failed: Vec<RequestId> =
            self.runs.iter().filter(|(_, run)| needs(run)).map(|(request, _)| *request).collect();
        failed.sort_unstable();
        for request in failed {
            self.withdraw_all(request, now, touched);
            actions.push(Action::Failed { request, node: id });
        }
        let room = self.room();
        for deployed in &mut self.graphs {
            // Fewer nodes hardly make a graph too complex. If they do, the old plans stay; those
            // that use missing nodes fail.
            let plans = room.plans(&deployed.graph, &deployed.costs);
            deployed.placements.retain(|placement| !placement.contains(&id));
            deployed.plans = plans.unwrap_or_else(|_| deployed.plans.clone());
        }
    }

    fn start_next(&mut self, id: NodeId, now: u64, actions: &mut Vec<Action>) {
        let node = &mut self.nodes[usize::from(id.0)];
        let runs = &self.runs;
        let resident = &node.resident;
        let is_ready = |reservation: &Reservation| {
            let is_loaded = resident.get(&reservation.function).is_some_and(|resident| resident.is_loaded);
            let stage_ready = |(request, stage): &(RequestId, usize)| {
                runs.get(request).is_some_and(|run| run.progress.state(*stage) == StageState::Ready)
            };
            is_loaded && reservation.members.iter().all(stage_ready)
        };
        match node.timeline.next(now, START_SCAN_MAX, is_ready) {
            Ok(index) => {
                let batch = node.timeline.start(index, now).members.clone();
                (node.started, node.wake) = (now, u64::MAX);
                actions.push(Action::Start { node: id, batch });
            }
            Err(wake) => node.wake = wake,
        }
    }
}
