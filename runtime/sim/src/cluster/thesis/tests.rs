//! The printed traces of §6.1, and Poisson runs.

use super::super::simulate_cluster;
use super::*;
use atoll_core::placement::placement_by_name;

fn steps(ns: f64) -> f64 {
    ns / STEP_NS as f64
}

/// A line of a trace: start and arrival in steps, model, and device, counted from 1.
fn lines(report: &ClusterReport) -> Vec<(u64, u64, char, usize)> {
    let line = |scheduled: &super::super::Scheduled| {
        let model = ['R', 'B'][scheduled.arrival.function];
        (scheduled.start_ns / STEP_NS, scheduled.arrival.at_ns / STEP_NS, model, scheduled.device + 1)
    };
    report.schedule.iter().map(line).collect()
}

#[test]
fn the_printed_traces_come_out_line_by_line() {
    let shared = [(0, 0, 'R', 1), (1, 1, 'B', 2), (6, 2, 'R', 1), (8, 3, 'R', 1)];
    let shortest = [(0, 0, 'R', 1), (2, 2, 'R', 2), (6, 3, 'R', 1), (8, 1, 'B', 2)];
    let robin = [(0, 0, 'R', 1), (1, 1, 'B', 2), (6, 2, 'R', 1), (19, 3, 'R', 2)];
    let rows = [
        ("round-robin", robin, 25, 3, 5.0, 6.666666666666667, 0.0),
        ("balance", shared, 19, 2, 2.25, 3.0, 0.0),
        ("srtf", shortest, 26, 3, 2.5, 1.0, 7.0),
        ("mlfqs", shortest, 26, 3, 2.5, 1.0, 7.0),
        ("exclusive", shared, 19, 2, 2.25, 3.0, 0.0),
    ];
    for (policy, trace, total, cold, mean, resnet, bert) in rows {
        let report = simulate_cluster(&example(placement_by_name(policy).unwrap(), COSTS[0]));
        assert_eq!(lines(&report), trace, "{policy}");
        assert_eq!((report.total_ns / STEP_NS, report.cold, report.moves), (total, cold, 0), "{policy}");
        assert_eq!(steps(report.waits.mean_wait_ns), mean, "{policy}");
        let waits: Vec<f64> = report.functions.iter().map(|f| steps(f.waits.mean_wait_ns)).collect();
        assert_eq!(waits, [resnet, bert], "{policy}");
    }
}

#[test]
fn a_run_is_printed_as_the_thesis_prints_it() {
    let cluster = example(placement_by_name("round-robin").unwrap(), COSTS[0]);
    let expected = "\
Request(arrival_time=0, model_type=ModelType.RESNET) is being scheduled at timestep 0 on resource GPU1
Request(arrival_time=1, model_type=ModelType.BERT) is being scheduled at timestep 1 on resource GPU2
Request(arrival_time=2, model_type=ModelType.RESNET) is being scheduled at timestep 6 on resource GPU1
Request(arrival_time=3, model_type=ModelType.RESNET) is being scheduled at timestep 19 on resource GPU2
Total time taken is: 25
Total cold starts is: 3
Total cache hits is: 1
Cache hit percentage is: 0.25
Average time waiting is: 5.0
Client(name=Client1, model_type=ModelType.RESNET):
Average time on queue is 6.666666666666667
Client(name=Client2, model_type=ModelType.BERT):
Average time on queue is 0.0
";
    assert_eq!(printed(&cluster, &simulate_cluster(&cluster)), expected);
}

#[test]
fn the_times_of_the_text_give_other_totals() {
    let total = |policy| {
        let report = simulate_cluster(&example(placement_by_name(policy).unwrap(), COSTS[1]));
        report.total_ns / STEP_NS
    };
    assert_eq!(["round-robin", "balance", "srtf"].map(total), [41, 31, 42]);
}

#[test]
fn seeds_of_the_buckets_of_the_printed_trace() {
    use atoll_core::placement::BucketWeights;
    let fits = |weights, seed| {
        let mut cluster = example(placement_by_name("mlfqs").unwrap(), COSTS[0]);
        cluster.pool.options.buckets = weights;
        cluster.pool.options.seed = seed;
        lines(&simulate_cluster(&cluster))[1] == (2, 2, 'R', 2) && simulate_cluster(&cluster).total_ns == 26 * STEP_NS
    };
    let seeds = |weights, end| (0..end).filter(|seed| fits(weights, *seed)).collect::<Vec<u64>>();
    assert_eq!(seeds(BucketWeights::Uniform, 53), [9, 14, 18, 30, 39, 52]);
    assert_eq!(seeds(BucketWeights::InverseDuration, 10), [2, 3, 5, 6, 8, 9]);
}

/// A row of the golden table: policy, look-ahead in steps, whether devices may be stolen; total,
/// mean waits of ResNet and BERT, cold starts, moves.
type Golden = (&'static str, u64, bool, u64, [&'static str; 2], usize, usize);

fn check_poisson(seed: u64, counts: [usize; 2], sum: u64, goldens: &[Golden]) {
    let arrivals = poisson(2, 0.32, 1000, seed);
    let count = |function| arrivals.iter().filter(|arrival| arrival.function == function).count();
    assert_eq!([count(0), count(1)], counts);
    assert_eq!(arrivals.iter().map(|arrival| arrival.at_ns / STEP_NS).sum::<u64>(), sum);
    for &(policy, ahead, steals, total, means, cold, moves) in goldens {
        let entry = placement_by_name(policy).unwrap();
        let mut cluster = cluster(entry, functions(COSTS[0], 2), 4, arrivals.clone());
        cluster.pool.options.seed = seed + 1000;
        if ahead > 0 {
            cluster.pool.options.visibility = Visibility::LookAhead(Nanos(ahead * STEP_NS));
        }
        if !steals {
            cluster.pool.options.steal = NO_STEAL;
        }
        let report = simulate_cluster(&cluster);
        let waits = [0, 1].map(|f: usize| format!("{:.4}", steps(report.functions[f].waits.mean_wait_ns)));
        let found = (report.total_ns / STEP_NS, waits, report.cold, report.moves);
        assert_eq!(found, (total, means.map(String::from), cold, moves), "{policy}, look-ahead {ahead}, seed {seed}");
        assert_eq!(report.waits.jobs, arrivals.len(), "{policy}");
    }
}

#[test]
fn poisson_runs_with_seed_1() {
    let goldens: [Golden; 7] = [
        ("round-robin", 0, false, 1146, ["73.7478", "73.6941"], 8, 0),
        ("balance", 0, false, 1009, ["3.1068", "3.1853"], 8, 0),
        ("srtf", 0, false, 1009, ["0.9644", "3.8265"], 8, 0),
        ("srtf", 1, false, 1010, ["0.6499", "5.2265"], 8, 0),
        ("mlfqs", 0, false, 1008, ["3.7567", "2.9735"], 8, 0),
        ("exclusive", 0, false, 1377, ["0.1395", "182.1324"], 4, 0),
        ("exclusive", 0, true, 1016, ["1.3353", "7.3471"], 8, 35),
    ];
    check_poisson(1, [337, 340], 345_807, &goldens);
}

#[test]
fn poisson_runs_with_seed_42() {
    let goldens: [Golden; 7] = [
        ("round-robin", 0, false, 1096, ["72.0139", "76.2455"], 8, 0),
        ("balance", 0, false, 1008, ["2.3958", "2.5808"], 8, 0),
        ("srtf", 0, false, 1008, ["0.9688", "2.9910"], 8, 0),
        ("srtf", 1, false, 1008, ["0.6667", "4.4251"], 8, 0),
        ("mlfqs", 0, false, 1008, ["3.1250", "2.3054"], 8, 0),
        ("exclusive", 0, false, 1353, ["0.1667", "179.3024"], 4, 0),
        ("exclusive", 0, true, 1011, ["0.7778", "6.9132"], 8, 29),
    ];
    check_poisson(42, [288, 334], 297_863, &goldens);
}
