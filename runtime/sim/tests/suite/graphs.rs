//! Graphs of functions in simulation: deadlines, bills, lost nodes, and the orders of Table 4.1.

use atoll_core::Nanos;
use atoll_core::graphs::{Admission, AdmissionConfig, Fifo, NodeId};
use atoll_sim::graphs::{GraphReport, GraphScenario, pipelines, simulate_graphs, thesis_table};

const SECOND: Nanos = Nanos(1_000_000_000);

fn admitted(scenario: &GraphScenario) -> GraphReport {
    let config = AdmissionConfig { seed: scenario.seed, ..AdmissionConfig::default() };
    let mut admission = Admission::new(config, scenario.kinds.clone(), &scenario.nodes);
    let report = simulate_graphs(scenario, &mut admission).unwrap();
    assert_eq!(admission.running(), 0);
    report
}

/// Checks that every request is answered once, and that its bill is the price of its runs.
fn assert_accounts(report: &GraphReport, about: &str) {
    let answers = report.rejected + report.finished + report.failed;
    assert_eq!((answers, report.unanswered, report.answered_again), (report.arrived, 0, 0), "{about}: {report:?}");
    assert_eq!(report.admitted, report.finished + report.failed, "{about}");
    assert_eq!(report.wrong_bills, 0, "{about}: skipped stages cost nothing, and batches are shared");
}

#[test]
fn admitted_graphs_keep_their_deadlines_at_80_percent_load() {
    let mut batched = 0;
    for seed in 0..8 {
        let report = admitted(&pipelines(80, SECOND, seed).unwrap());
        assert_accounts(&report, &format!("seed {seed}"));
        assert!(report.missed() <= 0.01, "seed {seed}: {report:?}");
        assert!(report.admitted * 10 >= report.arrived * 8, "seed {seed} rejects too much: {report:?}");
        assert!(report.skipped > 20, "seed {seed} skips stages: {report:?}");
        batched += report.runs.1 - report.runs.0;
    }
    assert!(batched > 0, "some runs serve several requests");
}

#[test]
fn runs_that_take_longer_than_measured_are_seen_as_missed_deadlines() {
    let scenario = GraphScenario { run_percent: (200, 250), ..pipelines(80, SECOND, 1).unwrap() };
    let report = admitted(&scenario);
    assert_accounts(&report, "long runs");
    assert!(report.missed() > 0.01, "{report:?}");
}

#[test]
fn beyond_capacity_requests_are_rejected_and_admitted_ones_are_in_time() {
    for seed in 0..3 {
        let report = admitted(&pipelines(200, SECOND, seed).unwrap());
        assert_accounts(&report, &format!("seed {seed}"));
        assert!(report.missed() <= 0.01 && report.rejected * 5 > report.arrived, "seed {seed}: {report:?}");
    }
}

#[test]
fn nothing_is_lost_with_a_node_and_nothing_is_answered_twice() {
    for seed in 0..10 {
        let mut scenario = pipelines(80, SECOND, seed).unwrap();
        // A GPU, a CPU, and then the rest of the GPUs.
        let lost = [(200, 2), (300, 0), (700, 3), (700, 4), (710, 5)];
        scenario.losses = lost.map(|(ms, node)| (Nanos(ms * 1_000_000 + seed), NodeId(node))).to_vec();
        let report = admitted(&scenario);
        assert_accounts(&report, &format!("seed {seed}"));
        assert!(report.failed > 0 && report.rejected > 0, "{report:?}");
    }
}

#[test]
fn fifo_answers_everything_and_misses_deadlines_beyond_capacity() {
    let scenario = pipelines(200, SECOND, 1).unwrap();
    let report = simulate_graphs(&scenario, &mut Fifo::new(&scenario.nodes)).unwrap();
    assert_accounts(&report, "fifo");
    assert!(report.rejected == 0 && report.missed() > 0.5, "{report:?}");
}

#[test]
fn a_scenario_gives_the_same_report_again() {
    let scenario = pipelines(90, SECOND, 5).unwrap();
    assert_eq!(admitted(&scenario), admitted(&scenario));
}

#[test]
fn the_orders_of_table_4_1_are_those_of_the_thesis() {
    let table = thesis_table().unwrap();
    for row in &table {
        let by_latency = (row.fifo.0, row.custom.0);
        let is_ordered = if row.slo_ms == 60 { by_latency.0 > by_latency.1 } else { by_latency.0 < by_latency.1 };
        assert!(is_ordered, "{table:#?}");
        assert!(row.clockwork.0 < row.fifo.0.min(row.custom.0), "Clockwork is the last: {table:#?}");
        assert!(row.clockwork.1 < row.fifo.1.min(row.custom.1), "by cost, too: {table:#?}");
    }
    assert!(table.windows(2).all(|rows| rows[0].fifo.0 <= rows[1].fifo.0), "more time, more in time: {table:#?}");
    let ours = table.iter().all(|row| row.ours.0 > row.fifo.0.max(row.custom.0));
    assert!(ours, "requests that have to meet both limits meet the deadline more often: {table:#?}");
}
