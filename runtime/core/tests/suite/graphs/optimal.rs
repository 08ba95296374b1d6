//! Phase one: the optimal assignments equal those found by listing all assignments.

use super::support::{MS, ensemble, graph, plain_costs, random_costs, random_graph};
use atoll_core::Nanos;
use atoll_core::graphs::{Cost, CostTable, Graph, KindId, Plans, Qualify, evaluate};
use atoll_core::rng::Rng;

/// Latency and cost of the Pareto-optimal assignments, found by listing all assignments.
fn brute_force(graph: &Graph, costs: &CostTable) -> Vec<(Nanos, Cost)> {
    let (stages, kinds) = (graph.stages().len(), costs.kinds().len());
    let mut all = Vec::new();
    for number in 0..kinds.pow(stages as u32) {
        let digits: Vec<KindId> =
            (0..stages as u32).map(|stage| KindId((number / kinds.pow(stage) % kinds) as u8)).collect();
        all.extend(evaluate(graph, costs, &digits));
    }
    assert_eq!(all.len() as u64, costs.assignments());
    all.sort_unstable();
    all.dedup();
    let mut best: Vec<(Nanos, Cost)> = Vec::new();
    for point in all {
        if best.last().is_none_or(|last| point.1 < last.1) {
            best.push(point);
        }
    }
    best
}

fn assert_equal(graph: &Graph, costs: &CostTable, about: &str) -> usize {
    let plans = Plans::new(graph, costs).expect(about);
    let found: Vec<(Nanos, Cost)> = plans.list().iter().map(|plan| (plan.latency, plan.cost)).collect();
    assert_eq!(found, brute_force(graph, costs), "{about}");
    for plan in plans.list() {
        assert_eq!(evaluate(graph, costs, &plan.kinds), Some((plan.latency, plan.cost)), "{about}");
    }
    assert_eq!(plans.considered(), costs.assignments());
    found.len()
}

#[test]
fn the_optimal_assignments_are_those_of_a_list_of_all() {
    let mut several = 0;
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let stages = 1 + rng.below(6) as usize;
        let graph = random_graph(&mut rng, stages);
        let kinds = 1 + rng.below(3);
        let costs = random_costs(&mut rng, &graph, kinds);
        several += usize::from(assert_equal(&graph, &costs, &format!("seed {seed}")) > 2);
    }
    assert!(several > 50, "most graphs have several optimal assignments, but only {several} had");
}

#[test]
fn ten_stages_on_three_kinds_are_the_thesis_59049_assignments() {
    let mut rng = Rng::new(3);
    let graph = random_graph(&mut rng, 10);
    let costs = random_costs(&mut rng, &graph, 3);
    let all_run = CostTable::new(
        &graph,
        costs.kinds().to_vec(),
        (0..10)
            .map(|stage| {
                (0..3).map(|kind| costs.get(stage, KindId(kind)).or(costs.get(stage, KindId(0))).copied()).collect()
            })
            .collect(),
    )
    .unwrap();
    assert_eq!(all_run.assignments(), 59_049);
    assert!(assert_equal(&graph, &all_run, "ten stages") > 3);
}

#[test]
fn branches_cost_the_time_of_the_longest_one_only() {
    let graph = Graph::new(ensemble()).unwrap();
    let plans = Plans::new(&graph, &plain_costs(&graph)).unwrap();
    let fastest = &plans.list()[0];
    assert_eq!((fastest.latency, fastest.cost), (Nanos(12 * MS), Cost(5 * 4 * MS * 10_000)));
    let cheapest = plans.list().last().unwrap();
    // 40 ms at a tenth of the price cost as much as 4 ms, so there is one optimal assignment.
    assert_eq!(cheapest, fastest);
}

#[test]
fn binary_search_finds_what_qualifies() {
    let mut rng = Rng::new(11);
    let graph = random_graph(&mut rng, 8);
    let costs = random_costs(&mut rng, &graph, 3);
    let plans = Plans::new(&graph, &costs).unwrap();
    let list = plans.list();
    assert!(list.len() > 3, "{}", list.len());
    let mut limits: Vec<(Option<Nanos>, Option<Cost>)> = vec![(None, None)];
    for plan in list {
        for (time, price) in [(0, 0), (0, 1), (1, 0)] {
            limits.push((Some(Nanos(plan.latency.0 - time)), Some(Cost(plan.cost.0 - price))));
            limits.push((Some(Nanos(plan.latency.0 - time)), None));
            limits.push((None, Some(Cost(plan.cost.0 - price))));
        }
        limits.push((Some(plan.latency), Some(list[list.len() / 2].cost)));
    }
    for (time, price) in limits {
        for qualify in [Qualify::Both, Qualify::Either] {
            let found: Vec<usize> = plans.qualifying(qualify, time, price).into_iter().flatten().collect();
            let qualifies = |index: &usize| {
                let is_fast = time.is_none_or(|time| list[*index].latency <= time);
                let is_cheap = price.is_none_or(|price| list[*index].cost <= price);
                if qualify == Qualify::Both { is_fast && is_cheap } else { is_fast || is_cheap }
            };
            let expected: Vec<usize> = (0..list.len()).filter(qualifies).collect();
            assert_eq!(found, expected, "{qualify:?} {time:?} {price:?}");
        }
    }
}

#[test]
fn a_uniform_assignment_is_on_one_kind() {
    let graph = graph(&[("a", &["x"]), ("b", &["a.y"])]);
    let mut rng = Rng::new(2);
    let plans = Plans::uniform(&graph, &random_costs(&mut rng, &graph, 3));
    assert!(!plans.list().is_empty());
    assert!(plans.list().iter().all(|plan| plan.kinds[0] == plan.kinds[1]));
}
