//! Single decisions of the admission, and the actions that follow from events.

use super::bad_graphs::cascade;
use super::support::{MS, cost, cpu_and_gpu, ensemble, graph, nodes, plain_costs, spec};
use atoll_core::Nanos;
use atoll_core::graphs::{
    Action, Admission, AdmissionConfig, Arrival, Cost, CostTable, Event, Explanation, Graph, GraphId, NodeId, Prefer,
    Reason, RequestId, Verdict, deadline_at,
};

fn at(ms: u64) -> Nanos {
    Nanos(ms * MS)
}

fn arrival(request: u64, deadline_ms: u64) -> Event {
    let deadline = Some(at(deadline_ms));
    Event::Arrived(Arrival { request: RequestId(request), graph: GraphId(0), deadline, price_max: None })
}

/// An admission of one graph with plain costs.
fn admission(config: AdmissionConfig, graph: Graph, nodes: &[atoll_core::graphs::NodeSpec]) -> Admission {
    let costs = plain_costs(&graph);
    let mut admission = Admission::new(config, cpu_and_gpu(), nodes);
    assert_eq!(admission.deploy(graph, costs), Ok(GraphId(0)));
    admission
}

fn explanation(actions: &[Action]) -> &Explanation {
    match &actions[0] {
        Action::Admitted(explanation) | Action::Rejected(explanation) => explanation,
        other => panic!("no decision: {other:?}"),
    }
}

fn reason(actions: &[Action]) -> Reason {
    match explanation(actions).verdict {
        Verdict::Rejected(reason) => reason,
        ref other => panic!("admitted: {other:?}"),
    }
}

fn planned_end(actions: &[Action]) -> Nanos {
    match &explanation(actions).verdict {
        Verdict::Admitted { end, .. } => *end,
        Verdict::Rejected(reason) => panic!("rejected: {reason}"),
    }
}

/// Reports all loads as done.
fn load_all(admission: &mut Admission, actions: &[Action], now: Nanos) -> Vec<Action> {
    let loads = actions.iter().filter_map(|action| match *action {
        Action::Load { node, function } => Some(Event::Loaded { node, function }),
        _ => None,
    });
    loads.flat_map(|event| admission.handle(event, now)).collect()
}

fn starts(actions: &[Action]) -> Vec<(u16, Vec<(u64, usize)>)> {
    let start = |action: &Action| match action {
        Action::Start { node, batch } => {
            Some((node.0, batch.iter().map(|(request, stage)| (request.0, *stage)).collect()))
        }
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

#[test]
fn branches_run_at_the_same_time_on_different_nodes() {
    let mut admission = admission(AdmissionConfig::default(), Graph::new(ensemble()).unwrap(), &nodes(0, 3, 1_000));
    let actions = admission.handle(arrival(1, 100), at(0));
    // Loads of 10 ms begin at once; two branches may share a node with `pre`.
    assert!(planned_end(&actions).0 <= 36 * MS, "{:?}", planned_end(&actions));
    let actions = load_all(&mut admission, &actions, at(10));
    assert_eq!(starts(&actions).len(), 1, "only the first stage has its inputs");
    let first = NodeId(starts(&actions)[0].0);
    let next = admission.handle(Event::Ended { node: first }, at(14));
    assert_eq!(starts(&next).len(), 3, "{next:?}");
    let mut last = Vec::new();
    for (node, _) in starts(&next) {
        last = admission.handle(Event::Ended { node: NodeId(node) }, at(18));
    }
    let [(node, batch)] = &starts(&last)[..] else { panic!("{last:?}") };
    assert_eq!(batch, &[(1, 4)]);
    let end = admission.handle(Event::Ended { node: NodeId(*node) }, at(22));
    let bill = Cost(20 * MS * 10_000);
    assert_eq!(end, [Action::Finished { request: RequestId(1), bill, is_late: false }]);
    assert_eq!(admission.running(), 0);
}

#[test]
fn a_warm_placement_is_reused_and_a_full_one_is_not() {
    let chain = graph(&[("a", &["x"])]);
    let mut admission = admission(AdmissionConfig::default(), chain, &nodes(0, 2, 1_000));
    let first = admission.handle(arrival(1, 20), at(0));
    assert_eq!(planned_end(&first), at(14));
    load_all(&mut admission, &first, at(10));
    let second = admission.handle(arrival(2, 20), at(10));
    assert!(matches!(explanation(&second).verdict, Verdict::Admitted { is_reused: true, end, .. } if end == at(18)));
    // The first node would end it at 22 ms, the second one has to load first: 24 ms.
    let third = admission.handle(arrival(3, 23), at(10));
    assert!(matches!(explanation(&third).verdict, Verdict::Admitted { is_reused: true, .. }));
    let fourth = admission.handle(arrival(4, 24), at(10));
    let Verdict::Admitted { is_reused, ref stages, .. } = explanation(&fourth).verdict else { panic!("{fourth:?}") };
    assert!(!is_reused && stages[0].node == NodeId(1) && stages[0].is_cold);
    assert_eq!(reason(&admission.handle(arrival(5, 25), at(10))), Reason::Busy { end: at(26) });
}

#[test]
fn waiting_requests_are_batched_where_no_deadline_suffers() {
    let mut batchable = spec(&[("a", &["x"])]);
    batchable.stages[0].batch_max = 3;
    let mut admission = admission(AdmissionConfig::default(), Graph::new(batchable).unwrap(), &nodes(0, 1, 1_000));
    let first = admission.handle(arrival(1, 100), at(0));
    let started = load_all(&mut admission, &first, at(10));
    assert_eq!(starts(&started), [(0, vec![(1, 0)])]);
    // The second request waits for the first run, until 14 ms, and must end by 18 ms.
    assert_eq!(planned_end(&admission.handle(arrival(2, 18), at(10))), at(18));
    // If the third joined the second, both would end at 19 ms. So the third has a separate run.
    assert_eq!(planned_end(&admission.handle(arrival(3, 40), at(10))), at(22));
    // The fourth joins the third, whose deadline allows it.
    let fourth = admission.handle(arrival(4, 40), at(10));
    assert_eq!(planned_end(&fourth), at(23));
    let Verdict::Admitted { ref stages, .. } = explanation(&fourth).verdict else { panic!("{fourth:?}") };
    assert_eq!(stages[0].batch, 2);
    let next = admission.handle(Event::Ended { node: NodeId(0) }, at(14));
    assert_eq!(starts(&next), [(0, vec![(2, 0)])]);
    let next = admission.handle(Event::Ended { node: NodeId(0) }, at(18));
    assert_eq!(starts(&next), [(0, vec![(3, 0), (4, 0)])]);
    let end = admission.handle(Event::Ended { node: NodeId(0) }, at(23));
    let bills: Vec<Cost> = end
        .iter()
        .map(|action| match action {
            Action::Finished { bill, is_late: false, .. } => *bill,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bills, [Cost(5 * MS * 10_000 / 2); 2], "a batch is shared");
}

#[test]
fn a_skipped_stage_is_not_billed_and_gives_its_time_back() {
    let graph = Graph::new(cascade()).unwrap();
    let mut admission = admission(AdmissionConfig::default(), graph, &nodes(0, 1, 1_000));
    for (request, runs, bill_ms) in [(1, false, 4), (2, true, 8)] {
        let now = 100 * request;
        let actions = admission.handle(arrival(request, now + 50), at(now));
        let actions = [actions.clone(), load_all(&mut admission, &actions, at(now))].concat();
        assert_eq!(starts(&actions), [(0, vec![(request, 0)])]);
        let actions = admission.handle(Event::Ended { node: NodeId(0) }, at(now + 4));
        assert_eq!(actions, [Action::Decide { request: RequestId(request), stage: 1 }]);
        let decided = Event::Decided { request: RequestId(request), stage: 1, runs };
        let mut actions = admission.handle(decided, at(now + 4));
        if runs {
            assert_eq!(starts(&actions), [(0, vec![(request, 1)])]);
            actions = admission.handle(Event::Ended { node: NodeId(0) }, at(now + 8));
        }
        let bill = Cost(bill_ms * MS * 10_000);
        assert_eq!(actions, [Action::Finished { request: RequestId(request), bill, is_late: false }]);
    }
}

#[test]
fn what_is_hopeless_is_rejected_with_the_cause() {
    let mut spec = spec(&[("a", &["x"]), ("b", &["a.y"])]);
    spec.price_max = None;
    let graph = Graph::new(spec).unwrap();
    let rows = vec![vec![Some(cost(20, 1, 100)), Some(cost(4, 1, 100))]; 2];
    let costs = CostTable::new(&graph, cpu_and_gpu(), rows).unwrap();
    let mut admission = Admission::new(AdmissionConfig::default(), cpu_and_gpu(), &nodes(1, 1, 250));
    admission.deploy(graph, costs).unwrap();
    let mut number = 0;
    let mut ask = |deadline: Option<u64>, price_max: Option<u64>| {
        number += 1;
        let (deadline, price_max) = (deadline.map(Nanos), price_max.map(Cost));
        let arrival = Arrival { request: RequestId(number), graph: GraphId(0), deadline, price_max };
        reason(&admission.handle(Event::Arrived(arrival), at(10)))
    };
    // Two runs of 20 ms at 1,000 are cheaper than two of 4 ms at 10,000.
    let (cheap, dear) = (40 * MS * 1_000, 8 * MS * 10_000);
    for (deadline, price, expected) in [
        (Some(0), None, Reason::DeadlinePast),
        (Some(10 * MS), None, Reason::DeadlinePast),
        (Some(18 * MS - 1), None, Reason::TooSlow { fastest: at(8) }),
        (None, Some(cheap - 1), Reason::TooDear { cheapest: Cost(cheap) }),
        (Some(40 * MS), Some(cheap), Reason::NoneIsBoth { latency: at(40) }),
        (Some(18 * MS), Some(dear), Reason::Busy { end: Nanos(19 * MS) }),
    ] {
        let found = ask(deadline, price);
        let is_same = std::mem::discriminant(&found) == std::mem::discriminant(&expected);
        assert!(is_same && (found == expected || matches!(found, Reason::Busy { .. })), "{found:?} {expected:?}");
        assert!(!found.to_string().is_empty());
    }
    let unknown = Arrival { request: RequestId(99), graph: GraphId(7), deadline: None, price_max: None };
    assert_eq!(reason(&admission.handle(Event::Arrived(unknown), at(10))), Reason::UnknownGraph);
    assert_eq!(deadline_at(at(1), Nanos(0)), Err(Reason::DeadlinePast));
    assert_eq!(deadline_at(at(1), Nanos(u64::MAX)), Err(Reason::DeadlinePast));
    assert_eq!(deadline_at(at(1), at(2)), Ok(at(3)));
}

#[test]
fn memory_and_lost_nodes_are_causes_of_their_own() {
    let chain = || graph(&[("a", &["x"])]);
    let mut small = admission(AdmissionConfig::default(), chain(), &nodes(1, 1, 99));
    assert_eq!(reason(&small.handle(arrival(1, 500), at(0))), Reason::TooLarge { stage: 0, bytes: 100 });
    let mut none = admission(AdmissionConfig::default(), chain(), &nodes(1, 1, 100));
    let admitted = none.handle(arrival(1, 500), at(0));
    let Verdict::Admitted { ref stages, .. } = explanation(&admitted).verdict else { panic!("{admitted:?}") };
    let node = stages[0].node;
    let lost = none.handle(Event::Lost { node }, at(1));
    assert_eq!(lost, [Action::Failed { request: RequestId(1), node }]);
    let again = none.handle(arrival(1, 500), at(1));
    assert!(matches!(explanation(&again).verdict, Verdict::Admitted { .. }), "the other node takes it");
    none.handle(Event::Lost { node: NodeId(1 - node.0) }, at(2));
    assert_eq!(reason(&none.handle(arrival(2, 500), at(2))), Reason::NoDevices { stage: 0 });
    assert_eq!(none.running(), 0);
}

#[test]
fn a_drained_node_is_planned_for_only_once_it_is_resumed() {
    let mut admission = admission(AdmissionConfig::default(), graph(&[("a", &["x"])]), &nodes(1, 1, 100));
    let (before, costs) = (admission.room(), plain_costs(&graph(&[("a", &["x"])])));
    admission.set_drained(NodeId(0), true);
    let room = admission.room();
    assert_ne!(room, before, "plans are to be found again");
    let plans = room.plans(&graph(&[("a", &["x"])]), &costs).unwrap();
    admission.update_planned(GraphId(0), costs.clone(), plans).unwrap();
    for request in 1..=3 {
        let admitted = admission.handle(arrival(request, 5_000), at(0));
        let Verdict::Admitted { ref stages, .. } = explanation(&admitted).verdict else { panic!("{admitted:?}") };
        assert_eq!(stages[0].node, NodeId(1));
    }
    admission.set_drained(NodeId(1), true);
    assert!(matches!(explanation(&admission.handle(arrival(4, 5_000), at(0))).verdict, Verdict::Rejected(_)));
    admission.update(GraphId(0), costs.clone()).unwrap();
    assert_eq!(reason(&admission.handle(arrival(5, 5_000), at(0))), Reason::NoDevices { stage: 0 });
    assert_eq!(admission.running(), 3, "what they have stays");
    (0..2).for_each(|node| admission.set_drained(NodeId(node), false));
    admission.update(GraphId(0), costs).unwrap();
    assert_eq!(admission.room(), before);
    assert!(matches!(explanation(&admission.handle(arrival(6, 5_000), at(0))).verdict, Verdict::Admitted { .. }));
}

#[test]
fn idle_constants_make_room_and_pinned_ones_do_not() {
    let two = graph(&[("a", &["x"])]);
    let mut other = spec(&[("b", &["x"])]);
    other.name = "other".into();
    let other = Graph::new(other).unwrap();
    let mut admission = admission(AdmissionConfig::default(), two, &nodes(0, 1, 150));
    let costs = plain_costs(&other);
    let second = admission.deploy(other, costs).unwrap();
    let ask = |admission: &mut Admission, request: u64, now: u64| {
        let deadline = Some(at(now + 50));
        let arrival = Arrival { request: RequestId(request), graph: second, deadline, price_max: None };
        admission.handle(Event::Arrived(arrival), at(now))
    };
    let first = admission.handle(arrival(1, 50), at(0));
    load_all(&mut admission, &first, at(10));
    assert_eq!(reason(&ask(&mut admission, 2, 10)), Reason::NoMemory, "the running stage needs its constants");
    admission.handle(Event::Ended { node: NodeId(0) }, at(14));
    let actions = ask(&mut admission, 3, 14);
    let function = admission.function(GraphId(0), 0).unwrap();
    assert!(actions.contains(&Action::Unload { node: NodeId(0), function }), "{actions:?}");
}

#[test]
fn a_cancelled_request_gives_its_reservations_back() {
    let chain = graph(&[("a", &["x"])]);
    let mut admission = admission(AdmissionConfig::default(), chain, &nodes(0, 1, 100));
    let first = admission.handle(arrival(1, 20), at(0));
    assert_eq!(reason(&admission.handle(arrival(2, 15), at(0))), Reason::Busy { end: at(18) });
    assert_eq!(reason(&admission.handle(arrival(1, 90), at(0))), Reason::Duplicate);
    admission.handle(Event::Cancelled { request: RequestId(1) }, at(1));
    admission.handle(Event::Cancelled { request: RequestId(1) }, at(1));
    load_all(&mut admission, &first, at(10));
    assert_eq!(planned_end(&admission.handle(arrival(3, 15), at(10))), at(14));
    // The request is cancelled while it runs: its node continues, and there is no answer.
    admission.handle(Event::Cancelled { request: RequestId(3) }, at(11));
    assert_eq!(admission.handle(Event::Ended { node: NodeId(0) }, at(14)), []);
    assert_eq!(admission.running(), 0);
}

#[test]
fn cost_or_speed_decides_between_plans() {
    for (prefer, kind) in [(Prefer::Cost, 0), (Prefer::Speed, 1)] {
        let graph = graph(&[("a", &["x"])]);
        let rows = vec![vec![Some(cost(20, 0, 1)), Some(cost(4, 0, 1))]];
        let costs = CostTable::new(&graph, cpu_and_gpu(), rows).unwrap();
        let config = AdmissionConfig { prefer, ..AdmissionConfig::default() };
        let mut admission = Admission::new(config, cpu_and_gpu(), &nodes(1, 1, 100));
        admission.deploy(graph, costs).unwrap();
        let actions = admission.handle(arrival(1, 100), at(0));
        let Verdict::Admitted { ref stages, .. } = explanation(&actions).verdict else { panic!("{actions:?}") };
        assert_eq!(stages[0].node, NodeId(kind), "{prefer:?}");
        assert_eq!(explanation(&actions).tried.len(), 2);
    }
}
