//! Functions of the admission that a daemon needs besides decisions: new costs, residency that it
//! learns of, explanations without reservations, and graphs that are deployed and removed.

use super::support::{MS, cost, cpu_and_gpu, graph, nodes, plain_costs, spec};
use atoll_core::Nanos;
use atoll_core::graphs::{
    Action, Admission, AdmissionConfig, Arrival, CostTable, Event, Graph, GraphId, GraphSpec, NodeId, Prefer, Reason,
    RequestId, Verdict,
};

fn at(ms: u64) -> Nanos {
    Nanos(ms * MS)
}

fn arrival(graph: GraphId, request: u64, deadline: u64) -> Arrival {
    Arrival { request: RequestId(request), graph, deadline: Some(at(deadline)), price_max: None }
}

fn one() -> Graph {
    graph(&[("a", &["x"])])
}

/// One stage of 20 ms on a CPU and 4 ms on a GPU; 10 ms to load.
fn costs(graph: &Graph, gpu_ms: u64) -> CostTable {
    CostTable::new(graph, cpu_and_gpu(), vec![vec![Some(cost(20, 10, 100)), Some(cost(gpu_ms, 10, 100))]]).unwrap()
}

fn verdict(actions: &[Action]) -> &Verdict {
    match &actions[0] {
        Action::Admitted(explanation) | Action::Rejected(explanation) => &explanation.verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn new_costs_change_the_next_decision() {
    let mut admission = Admission::new(AdmissionConfig::default(), cpu_and_gpu(), &nodes(1, 1, 100));
    let graph = one();
    let id = admission.deploy(graph.clone(), costs(&graph, 4)).unwrap();
    let too_slow = Verdict::Rejected(Reason::TooSlow { fastest: at(4) });
    assert_eq!(*verdict(&admission.handle(Event::Arrived(arrival(id, 1, 3)), at(0))), too_slow);
    admission.update(id, costs(&graph, 2)).unwrap();
    // Its constants are not there: 10 ms to load, and 2 ms to run.
    let actions = admission.handle(Event::Arrived(arrival(id, 2, 3)), at(0));
    assert_eq!(*verdict(&actions), Verdict::Rejected(Reason::Busy { end: at(12) }));
    admission.resident(id, 0, NodeId(1), at(0));
    let Verdict::Admitted { end, .. } = *verdict(&admission.handle(Event::Arrived(arrival(id, 3, 3)), at(0))) else {
        panic!("rejected")
    };
    assert_eq!(end, at(2));
    admission.update(GraphId(9), costs(&graph, 2)).unwrap();
}

#[test]
fn a_question_reserves_nothing_and_gets_the_answer_that_a_request_gets() {
    let mut admission = Admission::new(AdmissionConfig::default(), cpu_and_gpu(), &nodes(1, 1, 100));
    let graph = one();
    let id = admission.deploy(graph.clone(), costs(&graph, 4)).unwrap();
    for request in 0..20 {
        let arrival = arrival(id, request, 25);
        let asked = admission.consider(arrival, at(0));
        assert_eq!(asked, admission.consider(arrival, at(0)));
        let actions = admission.handle(Event::Arrived(arrival), at(0));
        assert_eq!(asked.verdict, *verdict(&actions), "request {request}");
    }
    assert!(admission.running() < 20, "not all of them have time");
}

#[test]
fn the_preference_of_a_graph_goes_first() {
    for (prefer, node) in [(None, 0), (Some(Prefer::Speed), 1), (Some(Prefer::Cost), 0)] {
        let graph = Graph::new(GraphSpec { prefer, ..spec(&[("a", &["x"])]) }).unwrap();
        let mut admission = Admission::new(AdmissionConfig::default(), cpu_and_gpu(), &nodes(1, 1, 100));
        let id = admission.deploy(graph.clone(), costs(&graph, 4)).unwrap();
        let actions = admission.handle(Event::Arrived(arrival(id, 1, 100)), at(0));
        let Verdict::Admitted { stages, .. } = verdict(&actions) else { panic!("{actions:?}") };
        assert_eq!(stages[0].node, NodeId(node), "{prefer:?}");
    }
}

#[test]
fn the_place_of_a_removed_graph_is_used_again_after_its_requests() {
    let mut admission = Admission::new(AdmissionConfig::default(), cpu_and_gpu(), &nodes(0, 1, 100));
    let graph = one();
    let first = admission.deploy(graph.clone(), plain_costs(&graph)).unwrap();
    admission.handle(Event::Arrived(arrival(first, 1, 100)), at(0));
    let function = admission.function(first, 0).unwrap();
    admission.handle(Event::Loaded { node: NodeId(0), function }, at(10));
    admission.remove(first);
    let second = admission.deploy(graph.clone().with_functions(|_| "g".into()), plain_costs(&graph)).unwrap();
    assert_ne!(first, second, "a request of the first one is running");
    let actions = admission.handle(Event::Ended { node: NodeId(0) }, at(14));
    assert!(matches!(actions[..], [Action::Finished { .. }]), "{actions:?}");
    // Constants that the removed graph had loaded no longer count.
    let third = admission.deploy(graph.clone(), plain_costs(&graph)).unwrap();
    assert_eq!(third, first);
    admission.remove(third);
    let actions = admission.handle(Event::Arrived(arrival(second, 2, 100)), at(20));
    assert!(!actions.iter().any(|action| matches!(action, Action::Unload { .. })), "{actions:?}");
}
