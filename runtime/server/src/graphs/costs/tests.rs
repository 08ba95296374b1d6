//! Tests of cost tables, with built-in stages and devices that do nothing.

use super::*;
use crate::graphs::builtin::Builtin;
use crate::graphs::desk::tests::{Devices, graph, graph_with};
use crate::prices::Prices;
use atoll_core::graphs::Cost;

const WORKS: [StageWork; 2] = [StageWork::Builtin(Builtin::Max), StageWork::Builtin(Builtin::Max)];

/// The costs of a graph whose two stages took this long in each of three runs.
fn costs(took: Duration) -> Costs {
    let desk = Desk::new(Arc::new(Devices::default()), &Prices::default()).expect("few kinds");
    let costs = Costs::new(Some(desk), "t", 2);
    (0..2).for_each(|stage| (0..3).for_each(|_| costs.note(&WORKS[stage], &ran(stage, took))));
    costs
}

/// A planned run.
fn ran(stage: usize, took: Duration) -> Ran {
    let timing = InvocationTiming { queue_ns: 5_000, compute_ns: 100, ..InvocationTiming::default() };
    Ran { stage, device: None, given_to: None, took, timing, cold_start: false, is_planned: true }
}

/// The graph with a price limit in its manifest.
fn with_price(price_max: u64) -> Graph {
    graph_with(Some(Cost(price_max)))
}

fn limits(price_max: Option<u64>) -> Limits {
    Limits { deadline: Some(Duration::from_secs(60)), price_max: price_max.map(Cost) }
}

#[test]
fn a_table_is_made_once_by_one_request_and_again_when_costs_move() {
    let costs = costs(Duration::from_micros(10));
    let is_due = || costs.is_due(&WORKS);
    assert!(is_due());
    assert!(!is_due(), "it is being made");
    assert!(matches!(costs.decide(&graph(), &WORKS, limits(None)), Decision::Measure), "nothing waits for it");
    costs.make_table(&graph(), &WORKS);
    assert!(matches!(costs.decide(&graph(), &WORKS, limits(Some(0))), Decision::Planned(_)));
    assert!(!is_due());
    costs.lock().table_at = None;
    assert!(!is_due(), "the costs have not moved");
    (0..2).for_each(|_| costs.note(&WORKS[0], &ran(0, Duration::from_millis(10))));
    assert!(is_due());
}

#[test]
fn a_price_limit_is_not_ignored_where_there_are_no_plans() {
    // The sum of the stages' times overflows, so the graph cannot be planned.
    let costs = costs(Duration::MAX);
    assert!(costs.is_due(&WORKS));
    costs.make_table(&graph(), &WORKS);
    let Decision::Rejected(rejected) = costs.decide(&graph(), &WORKS, limits(Some(5))) else { panic!("not rejected") };
    assert_eq!(rejected.reason, Reason::Unplanned);
    assert!(rejected.message.contains("times or prices up to stage `b` overflow"), "{rejected}");
    let of_manifest = with_price(5);
    assert!(matches!(costs.decide(&of_manifest, &WORKS, limits(None)), Decision::Rejected(_)), "also the graph's");
    assert!(matches!(costs.decide(&graph(), &WORKS, limits(None)), Decision::Measure));
    costs.lock().table_at = None;
    assert!(!costs.is_due(&WORKS), "the same costs would fail again");
    assert_eq!(costs.lock().failures, 1);
}

#[test]
fn a_request_beyond_its_deadline_is_measured_now_and_then_and_one_beyond_its_price_never() {
    let costs = costs(Duration::from_secs(100));
    assert!(costs.is_due(&WORKS));
    costs.make_table(&graph(), &WORKS);
    let long_ago = Instant::now().checked_sub(PROBE_EVERY).expect("the clock is older than that");
    let decide = |graph: &Graph, limits| {
        costs.lock().probed_at = Some(long_ago);
        costs.decide(graph, &WORKS, limits)
    };
    assert!(matches!(decide(&graph(), limits(None)), Decision::Measure), "60 s are not enough");
    assert!(matches!(decide(&graph(), limits(Some(0))), Decision::Rejected(_)), "the run may cost more");
    assert!(matches!(decide(&with_price(0), limits(None)), Decision::Rejected(_)), "also by the graph's limit");
}

#[test]
fn only_planned_runs_count_the_way_to_their_device() {
    let planned = ran(0, Duration::from_nanos(7_000));
    assert_eq!(planned.exec(), Nanos(7_000));
    assert_eq!(Ran { cold_start: true, ..planned }.exec(), Nanos(2_000), "loads are a cost of their own");
    let unplanned = Ran { is_planned: false, ..ran(0, Duration::from_secs(9)) };
    assert_eq!(unplanned.exec(), Nanos(100), "not the time in the pool");
    let elsewhere = Ran { device: Some(DeviceId(1)), given_to: Some(DeviceId(0)), ..ran(0, Duration::from_secs(9)) };
    assert_eq!(elsewhere.exec(), Nanos(100));
}
