//! Prints how long the admission of a graph takes to decide, with 3^10 = 59,049 assignments on 64
//! nodes at 80 % load: `cargo run --release -p atoll-core --example graph_decisions`.

use atoll_core::Nanos;
use atoll_core::graphs::{
    Action, Admission, AdmissionConfig, Arrival, CostTable, Event, Form, Graph, GraphError, GraphSpec, Kind, KindId,
    Link, NodeId, NodeSpec, RequestId, SourceName, StageCost, StageSpec, TensorSpec, Verdict,
};
use atoll_core::rng::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Write;
use std::time::Instant;

const STAGES: usize = 10;
const REQUESTS: u64 = 20_000;
const US: u64 = 1_000;

fn tensor(name: String) -> TensorSpec {
    TensorSpec { name, form: Form { element: "FP32".into(), shape: Vec::new() } }
}

/// Ten stages, each on the outputs of two earlier ones.
fn graph() -> Result<Graph, GraphError> {
    let source = |stage: Option<usize>| match stage {
        None => SourceName::Input("x".into()),
        Some(stage) => SourceName::Output { stage: format!("s{stage}"), output: "y".into() },
    };
    let stage = |index: usize| {
        let from = [index.checked_sub(1), index.checked_sub(3)];
        StageSpec {
            name: format!("s{index}"),
            function: format!("f{index}"),
            inputs: (0..2).map(|input| tensor(format!("i{input}"))).collect(),
            outputs: vec![tensor("y".into())],
            from: from
                .iter()
                .enumerate()
                .map(|(input, from)| Link { name: format!("i{input}"), from: source(*from) })
                .collect(),
            batch_max: if index.is_multiple_of(3) { 4 } else { 1 },
            ..StageSpec::default()
        }
    };
    Graph::new(GraphSpec {
        name: "ten".into(),
        inputs: vec![tensor("x".into())],
        stages: (0..STAGES).map(stage).collect(),
        outputs: vec![Link { name: "y".into(), from: source(Some(STAGES - 1)) }],
        deadline: Some(Nanos(60_000 * US)),
        price_max: None,
        prefer: None,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut rng = Rng::new(1);
    let kind = |name: &str, is_cpu, price_per_s| Kind { name: name.into(), is_cpu, price_per_s };
    let kinds = vec![kind("cpu", true, 1_000), kind("gpu", false, 5_000), kind("fast-gpu", false, 12_000)];
    let mut cost = |base: u64| StageCost {
        pre: Nanos(5_000 * US),
        exec: Nanos((base + rng.below(base)) * US),
        batch_step: Nanos(base * US / 4),
        post: Nanos(500 * US),
        bytes: 100,
    };
    let rows: Vec<_> = (0..STAGES).map(|_| [4_000, 1_000, 500].map(|base| Some(cost(base))).to_vec()).collect();
    let (graph, nodes) = (graph()?, (0..64).map(|index| NodeSpec { kind: KindId(index % 3), bytes: 600 }));
    let costs = CostTable::new(&graph, kinds.clone(), rows)?;
    let mut admission = Admission::new(AdmissionConfig::default(), kinds, &nodes.collect::<Vec<_>>());
    let begun = Instant::now();
    let id = admission.deploy(graph, costs)?;
    let phase_one = begun.elapsed();
    let plans = admission.plans(id).ok_or("the graph was deployed")?;
    let (assignments, optimal) = (plans.considered(), plans.list().len());
    let fastest = plans.list()[0].latency.0;
    let mut world = World {
        admission,
        rng: Rng::new(2),
        ends: BinaryHeap::new(),
        exec: Vec::new(),
        admitted: 0,
        finished: 0,
        late: 0,
    };
    let mut times = Vec::new();
    let mut at = 0;
    for request in 0..REQUESTS {
        at += rng.below(2 * 700 * US);
        world.run_until(at);
        let deadline = Some(Nanos(at + fastest + rng.below(40_000 * US)));
        let arrival = Arrival { request: RequestId(request), graph: id, deadline, price_max: None };
        let begun = Instant::now();
        let actions = world.admission.handle(Event::Arrived(arrival), Nanos(at));
        times.push(begun.elapsed().as_nanos() as u64);
        world.apply(&actions, at);
    }
    times.sort_unstable();
    let percentile = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)] as f64 / 1e3;
    let (p50, p99, max) = (percentile(50), percentile(99), percentile(100));
    let share = 100.0 * world.admitted as f64 / REQUESTS as f64;
    let late = 100.0 * world.late as f64 / world.finished.max(1) as f64;
    writeln!(
        std::io::stdout(),
        "{assignments} assignments, {optimal} optimal, found in {phase_one:.1?}\n{REQUESTS} decisions on 64 nodes, \
         {share:.1} % admitted, {late:.2} % of them late: p50 {p50:.1} µs, p99 {p99:.1} µs, max {max:.1} µs"
    )?;
    Ok(())
}

/// Nodes whose runs take up to a tenth more or less than a fixed time.
struct World {
    admission: Admission,
    rng: Rng,
    /// Times at which loads and runs end.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    exec: Vec<Event>,
    admitted: u64,
    finished: u64,
    late: u64,
}

impl World {
    fn apply(&mut self, actions: &[Action], now: u64) {
        for action in actions {
            match action {
                Action::Admitted(explanation) => {
                    self.admitted += 1;
                    assert!(matches!(explanation.verdict, Verdict::Admitted { .. }));
                }
                Action::Load { node, function } => {
                    self.later(now + 5_500 * US, Event::Loaded { node: *node, function: *function });
                }
                Action::Start { node, batch } => {
                    // The kinds' largest times, on average.
                    let exec = [6_000, 1_500, 750][usize::from(node.0 % 3)] + 100 * batch.len() as u64;
                    let exec = exec * (900 + self.rng.below(201)) / 1000;
                    self.later(now + exec * US, Event::Ended { node: NodeId(node.0) });
                }
                Action::Finished { is_late, .. } => {
                    self.finished += 1;
                    self.late += u64::from(*is_late);
                }
                _ => {}
            }
        }
    }

    fn later(&mut self, at: u64, event: Event) {
        self.ends.push(Reverse((at, self.exec.len() as u64)));
        self.exec.push(event);
    }

    fn run_until(&mut self, until: u64) {
        loop {
            let wake = self.admission.wake_at().map_or(u64::MAX, |wake| wake.0);
            let next = self.ends.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let now = wake.min(next);
            if now > until {
                return;
            }
            let event = match self.ends.peek() {
                Some(Reverse((at, index))) if *at == now => {
                    let index = *index as usize;
                    self.ends.pop();
                    self.exec[index]
                }
                _ => Event::Tick,
            };
            let actions = self.admission.handle(event, Nanos(now));
            self.apply(&actions, now);
        }
    }
}
