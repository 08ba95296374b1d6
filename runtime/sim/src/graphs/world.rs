//! Runs a scenario: steps the components, delivers their messages, and keeps independent counts.

use super::actors::{Component, Controller, Message, SimNode, Source};
use atoll_core::Nanos;
use atoll_core::graphs::{
    Action, Admission, Arrival, Cost, CostTable, Event, Fifo, FunctionId, Graph, GraphError, GraphId, Kind, NodeId,
    NodeSpec, RequestId, StageCost, Verdict,
};
use atoll_core::rng::Rng;
use std::collections::BTreeMap;

/// A request of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphRequest {
    /// When it arrives.
    pub at: Nanos,
    /// Index of its graph.
    pub graph: usize,
    /// Its deadline, relative to its arrival.
    pub deadline: Nanos,
    /// Its price limit.
    pub price_max: Option<Cost>,
}

/// A cluster, its graphs, and the requests to them.
#[derive(Clone, Debug)]
pub struct GraphScenario {
    /// The kinds of nodes.
    pub kinds: Vec<Kind>,
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// The graphs with their costs.
    pub graphs: Vec<(Graph, CostTable)>,
    /// The requests, in the order of their arrivals.
    pub requests: Vec<GraphRequest>,
    /// Nodes that fail, in the order of time.
    pub losses: Vec<(Nanos, NodeId)>,
    /// Length of a step.
    pub step: Nanos,
    /// When the run ends, even if requests are left. If `None`, it ends with the last request.
    pub until: Option<Nanos>,
    /// The shortest and the longest duration of a run, in percent of its cost. Durations are
    /// distributed uniformly.
    pub run_percent: (u64, u64),
    /// Probability that a condition holds, in percent.
    pub condition_percent: u64,
    /// Seed of run times and conditions.
    pub seed: u64,
}

/// The outcomes of the requests of a scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphReport {
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that were rejected.
    pub rejected: u64,
    /// Admitted requests that finished.
    pub finished: u64,
    /// Finished requests that met their deadline.
    pub in_time: u64,
    /// Finished requests that met their price limit.
    pub in_price: u64,
    /// Admitted requests that failed because a node was lost.
    pub failed: u64,
    /// Requests that never got an answer.
    pub unanswered: u64,
    /// Surplus answers: those after the first one to a request.
    pub answered_again: u64,
    /// Requests whose bill differs from the price of their runs.
    pub wrong_bills: u64,
    /// Stages that were skipped.
    pub skipped: u64,
    /// Number of runs, and number of stages of requests that they served.
    pub runs: (u64, u64),
    /// The sum of all bills.
    pub billed: Cost,
    /// The sum of all run times.
    pub busy: Nanos,
    /// The end of the last request.
    pub end: Nanos,
}

impl GraphReport {
    /// `count` requests in `duration`, as requests per second.
    pub fn per_second(count: u64, duration: Nanos) -> f64 {
        count as f64 / (duration.0.max(1) as f64 / 1e9)
    }

    /// The fraction of finished requests that missed their deadline.
    pub fn missed(&self) -> f64 {
        (self.finished - self.in_time) as f64 / self.finished.max(1) as f64
    }
}

/// The policy of a simulation.
pub trait GraphPolicy {
    /// Deploys a graph.
    ///
    /// # Errors
    /// If the policy cannot serve it.
    fn deploy(&mut self, graph: Graph, costs: CostTable) -> Result<GraphId, GraphError>;

    /// The function of a stage; `None` if there is no such stage.
    fn function(&self, graph: GraphId, stage: usize) -> Option<FunctionId>;

    /// Handles an event and returns the resulting actions.
    fn handle(&mut self, event: Event, now: Nanos) -> Vec<Action>;
}

impl GraphPolicy for Admission {
    fn deploy(&mut self, graph: Graph, costs: CostTable) -> Result<GraphId, GraphError> {
        Admission::deploy(self, graph, costs)
    }

    fn function(&self, graph: GraphId, stage: usize) -> Option<FunctionId> {
        Admission::function(self, graph, stage)
    }

    fn handle(&mut self, event: Event, now: Nanos) -> Vec<Action> {
        Admission::handle(self, event, now)
    }
}

impl GraphPolicy for Fifo {
    fn deploy(&mut self, graph: Graph, costs: CostTable) -> Result<GraphId, GraphError> {
        Ok(Fifo::deploy(self, graph, costs))
    }

    fn function(&self, graph: GraphId, stage: usize) -> Option<FunctionId> {
        Fifo::function(self, graph, stage)
    }

    fn handle(&mut self, event: Event, now: Nanos) -> Vec<Action> {
        Fifo::handle(self, event, now)
    }
}

/// Number of steps after the last arrival after which the run ends. Requests that have not ended by
/// then count as unanswered.
const STEPS_AFTER_MAX: u64 = 1_000_000;

/// Runs a scenario to its end.
///
/// # Errors
/// If the policy refuses a graph.
pub fn simulate_graphs(scenario: &GraphScenario, policy: &mut dyn GraphPolicy) -> Result<GraphReport, GraphError> {
    for (graph, costs) in &scenario.graphs {
        policy.deploy(graph.clone(), costs.clone())?;
    }
    let arrival = |(number, request): (usize, &GraphRequest)| {
        let deadline = Some(Nanos(request.at.0 + request.deadline.0));
        let (request_id, graph) = (RequestId(number as u64), GraphId(request.graph as u32));
        (request.at, Arrival { request: request_id, graph, deadline, price_max: request.price_max })
    };
    let mut functions: BTreeMap<FunctionId, (usize, usize)> = BTreeMap::new();
    for (graph, (description, _)) in scenario.graphs.iter().enumerate() {
        for stage in 0..description.stages().len() {
            let function = policy.function(GraphId(graph as u32), stage);
            functions.extend(function.map(|function| (function, (graph, stage))));
        }
    }
    let source = Source {
        requests: scenario.requests.iter().enumerate().map(arrival).collect(),
        losses: scenario.losses.iter().copied().collect(),
        outbox: Vec::new(),
    };
    let nodes = (0..scenario.nodes.len()).map(|index| SimNode::new(NodeId(index as u16))).collect();
    let controller = Controller { policy, inbox: Vec::new(), outbox: Vec::new() };
    let books = Books {
        scenario,
        functions,
        rng: Rng::new(scenario.seed),
        open: BTreeMap::new(),
        ended: vec![0; scenario.requests.len()],
        unloads: vec![0; scenario.nodes.len()],
        report: GraphReport::default(),
    };
    Ok(World { source, controller, nodes, books }.run())
}

struct World<'a> {
    source: Source,
    controller: Controller<'a>,
    nodes: Vec<SimNode>,
    books: Books<'a>,
}

impl World<'_> {
    fn run(mut self) -> GraphReport {
        let step = self.books.scenario.step.0.max(1);
        let last = self.books.scenario.requests.last().map_or(0, |request| request.at.0);
        let mut now = Nanos(0);
        loop {
            self.step(now);
            let is_over = self.source.requests.is_empty() && self.books.open.is_empty();
            let is_over = is_over || self.books.scenario.until.is_some_and(|until| now >= until);
            if is_over || now.0 > last + STEPS_AFTER_MAX * step {
                break;
            }
            now.0 += step;
        }
        self.books.close(now)
    }

    /// One step: delivers messages, and the messages sent in reply, until there are none.
    fn step(&mut self, now: Nanos) {
        self.controller.input(Message::Event(Event::Tick));
        self.source.exec(now);
        let mut post = self.source.output();
        loop {
            for node in &mut self.nodes {
                node.exec(now);
                post.extend(node.output());
            }
            for message in std::mem::take(&mut post) {
                self.deliver(message);
            }
            self.controller.exec(now);
            for message in self.controller.output() {
                let Message::Done(action) = message else { continue };
                post.extend(self.books.action(action, now));
            }
            if post.is_empty() {
                return;
            }
            for message in std::mem::take(&mut post) {
                self.deliver(message);
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Run { node, .. } | Message::Load { node, .. } | Message::Fail { node } => {
                self.nodes[usize::from(node.0)].input(message);
            }
            Message::Event(_) | Message::Done(_) => self.controller.input(message),
        }
    }
}

/// Turns actions into messages, and counts the outcomes of requests independently of the policy.
struct Books<'a> {
    scenario: &'a GraphScenario,
    /// A stage that calls each function.
    functions: BTreeMap<FunctionId, (usize, usize)>,
    rng: Rng,
    /// The cost so far of each admitted request that has not ended.
    open: BTreeMap<RequestId, u64>,
    /// Number of answers to each request.
    ended: Vec<u32>,
    /// Per node, the unload time that is added to the next load.
    unloads: Vec<u64>,
    report: GraphReport,
}

impl Books<'_> {
    fn action(&mut self, action: Action, now: Nanos) -> Option<Message> {
        match action {
            Action::Admitted(explanation) => {
                assert!(
                    matches!(explanation.verdict, Verdict::Admitted { .. }),
                    "admitted with a verdict that says so"
                );
                self.report.admitted += 1;
                self.open.insert(explanation.request, 0);
                None
            }
            Action::Rejected(explanation) => {
                self.report.rejected += 1;
                self.answer(explanation.request, now);
                None
            }
            Action::Unload { node, function } => {
                let post = self.cost_of(node, function).map_or(0, |cost| cost.post.0);
                self.unloads[usize::from(node.0)] += post;
                None
            }
            Action::Load { node, function } => {
                let unload = std::mem::take(&mut self.unloads[usize::from(node.0)]);
                let pre = self.cost_of(node, function).map_or(0, |cost| cost.pre.0);
                Some(Message::Load { node, function, takes: unload + pre })
            }
            Action::Start { node, batch } => Some(self.start(node, &batch)),
            Action::Decide { request, stage } => {
                let runs = self.rng.below(100) < self.scenario.condition_percent;
                self.report.skipped += u64::from(!runs);
                Some(Message::Event(Event::Decided { request, stage, runs }))
            }
            Action::Finished { request, bill, .. } => {
                self.finish(request, bill, now);
                None
            }
            Action::Failed { request, .. } => {
                self.report.failed += 1;
                self.open.remove(&request);
                self.answer(request, now);
                None
            }
        }
    }

    fn cost_of(&self, node: NodeId, function: FunctionId) -> Option<&StageCost> {
        let (graph, stage) = *self.functions.get(&function)?;
        self.scenario.graphs[graph].1.get(stage, self.scenario.nodes[usize::from(node.0)].kind)
    }

    fn start(&mut self, node: NodeId, batch: &[(RequestId, usize)]) -> Message {
        let kind = self.scenario.nodes[usize::from(node.0)].kind;
        let table = |request: RequestId| &self.scenario.graphs[self.scenario.requests[request.0 as usize].graph].1;
        let (first, stage) = batch[0];
        let cost = table(first).get(stage, kind).expect("a stage runs where it has a cost");
        let full = cost.batch_ns(batch.len() as u32);
        let (least, most) = self.scenario.run_percent;
        let percent = least + self.rng.below(most - least + 1);
        let step = self.scenario.step.0.max(1);
        // A run ends at the end of a step.
        let takes = (full * percent / 100).div_ceil(step) * step;
        let share = takes / batch.len() as u64;
        for (request, _) in batch {
            let price = table(*request).price(kind, share).0;
            *self.open.get_mut(request).expect("only admitted requests run, and none after its end") += price;
        }
        self.report.runs.0 += 1;
        self.report.runs.1 += batch.len() as u64;
        self.report.busy.0 += takes;
        Message::Run { node, takes }
    }

    fn finish(&mut self, request: RequestId, bill: Cost, now: Nanos) {
        let asked = &self.scenario.requests[request.0 as usize];
        self.report.finished += 1;
        self.report.in_time += u64::from(now.0 <= asked.at.0 + asked.deadline.0);
        self.report.in_price += u64::from(asked.price_max.is_none_or(|price| bill <= price));
        self.report.wrong_bills += u64::from(self.open.remove(&request) != Some(bill.0));
        self.report.billed.0 = self.report.billed.0.saturating_add(bill.0);
        self.answer(request, now);
    }

    fn answer(&mut self, request: RequestId, now: Nanos) {
        self.ended[request.0 as usize] += 1;
        self.report.end = now;
    }

    fn close(mut self, _now: Nanos) -> GraphReport {
        self.report.arrived = self.ended.len() as u64;
        self.report.unanswered = self.ended.iter().filter(|answers| **answers == 0).count() as u64;
        self.report.answered_again = self.ended.iter().map(|answers| u64::from(answers.saturating_sub(1))).sum();
        self.report
    }
}
