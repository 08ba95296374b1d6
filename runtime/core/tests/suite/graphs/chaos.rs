//! Random events: runs that take too long, cancelled requests, and lost nodes.

use super::support::{MS, random_costs, random_graph};
use atoll_core::Nanos;
use atoll_core::graphs::{
    Action, Admission, AdmissionConfig, Arrival, CostTable, Event, Fifo, Graph, GraphId, KindId, NodeId, NodeSpec,
    Prefer, Qualify, RequestId,
};
use atoll_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// The policy under test.
enum Policy {
    Admission(Box<Admission>),
    Fifo(Box<Fifo>),
}

impl Policy {
    fn handle(&mut self, event: Event, now: u64) -> Vec<Action> {
        match self {
            Policy::Admission(admission) => admission.handle(event, Nanos(now)),
            Policy::Fifo(fifo) => fifo.handle(event, Nanos(now)),
        }
    }
}

/// The state of the cluster, kept independently of the policy.
struct World {
    policy: Policy,
    rng: Rng,
    now: u64,
    /// Future events by time.
    coming: BTreeMap<(u64, u64), Event>,
    number: u64,
    running: BTreeSet<NodeId>,
    lost: BTreeSet<NodeId>,
    /// Requests that were admitted and have not ended, with the stages that ran.
    open: BTreeMap<RequestId, BTreeSet<usize>>,
    ended: BTreeSet<RequestId>,
    counts: [u64; 4],
}

impl World {
    fn later(&mut self, after: u64, event: Event) {
        self.number += 1;
        self.coming.insert((self.now + after, self.number), event);
    }

    fn handle(&mut self, event: Event) {
        for action in self.policy.handle(event, self.now) {
            self.act(action);
        }
    }

    fn end(&mut self, request: RequestId, count: usize) {
        assert!(self.ended.insert(request), "{request:?} ends once");
        self.open.remove(&request);
        self.counts[count] += 1;
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Admitted(explanation) => drop(self.open.insert(explanation.request, BTreeSet::new())),
            Action::Rejected(explanation) => self.end(explanation.request, 0),
            Action::Finished { request, .. } => self.end(request, 1),
            Action::Failed { request, .. } => self.end(request, 2),
            Action::Unload { .. } => {}
            Action::Load { node, function } => {
                let after = self.rng.below(3 * MS);
                self.later(after, Event::Loaded { node, function });
            }
            Action::Decide { request, stage } => {
                let runs = self.rng.one_in(2);
                self.later(0, Event::Decided { request, stage, runs });
            }
            Action::Start { node, batch } => {
                assert!(!self.lost.contains(&node) && self.running.insert(node), "{node} is idle and alive");
                assert!(!batch.is_empty());
                for (request, stage) in batch {
                    let stages = self.open.get_mut(&request).expect("only open requests run");
                    assert!(stages.insert(stage), "stage {stage} of {request:?} runs once");
                }
                // Some runs take far longer than measured.
                let after = self.rng.below(30 * MS);
                self.later(after, Event::Ended { node });
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Ended { node } => drop(self.running.remove(&node)),
            Event::Lost { node } => {
                self.lost.insert(node);
                // The run on the lost node never ends.
                self.running.remove(&node);
                self.coming.retain(|_, event| *event != Event::Ended { node });
            }
            // A request that has not arrived or has ended cannot be cancelled.
            Event::Cancelled { request } if self.open.contains_key(&request) => self.end(request, 3),
            _ => {}
        }
        self.handle(event);
    }
}

fn policy(rng: &mut Rng, graphs: &[(Graph, CostTable)], nodes: &[NodeSpec]) -> Policy {
    let kinds = graphs[0].1.kinds().to_vec();
    match rng.below(5) {
        whole @ 0..2 => {
            let mut fifo = if whole == 0 { Fifo::new(nodes) } else { Fifo::whole_graphs(nodes) };
            for (graph, costs) in graphs {
                fifo.deploy(graph.clone(), costs.clone());
            }
            Policy::Fifo(Box::new(fifo))
        }
        choice => {
            let config = match choice {
                2 => AdmissionConfig::thesis(rng.next_u64()),
                3 => AdmissionConfig::clockwork(),
                _ => AdmissionConfig { prefer: Prefer::Speed, qualify: Qualify::Both, ..AdmissionConfig::default() },
            };
            let mut admission = Admission::new(config, kinds, nodes);
            for (graph, costs) in graphs {
                admission.deploy(graph.clone(), costs.clone()).unwrap();
            }
            Policy::Admission(Box::new(admission))
        }
    }
}

fn run(seed: u64) -> [u64; 4] {
    let mut rng = Rng::new(seed);
    let kinds = 1 + rng.below(3);
    let graph = |rng: &mut Rng| {
        let stages = 1 + rng.below(6) as usize;
        let graph = random_graph(rng, stages);
        let costs = random_costs(rng, &graph, kinds);
        (graph, costs)
    };
    let graphs: Vec<_> = (0..3).map(|_| graph(&mut rng)).collect();
    let node = |rng: &mut Rng| NodeSpec { kind: KindId(rng.below(kinds) as u8), bytes: 600 + rng.below(600) };
    let nodes: Vec<NodeSpec> = (0..2 + rng.below(5)).map(|_| node(&mut rng)).collect();
    let policy = policy(&mut rng, &graphs, &nodes);
    let mut world = World {
        policy,
        rng,
        now: 0,
        coming: BTreeMap::new(),
        number: 0,
        running: BTreeSet::new(),
        lost: BTreeSet::new(),
        open: BTreeMap::new(),
        ended: BTreeSet::new(),
        counts: [0; 4],
    };
    for request in 0..120 {
        let at = world.rng.below(400 * MS);
        let deadline = (!world.rng.one_in(3)).then(|| Nanos(at + 1 + world.rng.below(200 * MS)));
        let graph = GraphId(world.rng.below(3) as u32);
        let request = RequestId(request);
        world.later(at, Event::Arrived(Arrival { request, graph, deadline, price_max: None }));
        if world.rng.one_in(5) {
            let after = at + world.rng.below(60 * MS);
            world.later(after, Event::Cancelled { request });
        }
    }
    for node in 0..nodes.len() as u16 {
        if world.rng.one_in(3) {
            let at = world.rng.below(500 * MS);
            world.later(at, Event::Lost { node: NodeId(node) });
        }
    }
    for _ in 0..100_000 {
        let wake = match &world.policy {
            Policy::Admission(admission) => admission.wake_at().map(|wake| wake.0),
            Policy::Fifo(_) => None,
        };
        let next = world.coming.first_key_value().map(|(&(at, _), _)| at);
        if let Some(wake) = wake.filter(|wake| next.is_none_or(|next| *wake < next)) {
            assert!(wake >= world.now, "time goes on");
            world.now = wake;
            world.event(Event::Tick);
            continue;
        }
        let Some(((at, _), event)) = world.coming.pop_first() else { break };
        world.now = at;
        world.event(event);
    }
    // With FIFO, requests that no remaining node can run wait for ever; an admission leaves none.
    if let Policy::Admission(admission) = &world.policy {
        assert_eq!((admission.running(), world.open.len()), (0, 0), "seed {seed}: every request ends");
        assert_eq!(world.ended.len(), 120, "seed {seed}");
    }
    world.counts
}

#[test]
fn every_request_ends_once_whatever_happens() {
    let mut sums = [0; 4];
    for seed in 0..60 {
        let counts = run(seed);
        (0..4).for_each(|index| sums[index] += counts[index]);
    }
    assert!(sums.iter().all(|sum| *sum > 20), "rejected, finished, failed, cancelled: {sums:?}");
}
