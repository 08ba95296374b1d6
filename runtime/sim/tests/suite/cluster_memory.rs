//! Clusters whose devices have the daemon's memory decisions.

use crate::cluster::{KIB, MS, check, cluster, function, scheduler};
use atoll_core::placement::{GroupId, PLACEMENTS};
use atoll_core::rng::Rng;
use atoll_sim::cluster::{Arrival, ClusterFunction, ClusterReport, MemoryReport, NodeModel, simulate_cluster};

const MIB: u64 = 1 << 20;

fn memory(report: &ClusterReport) -> MemoryReport {
    report.memory.expect("full devices have memory decisions")
}

/// The launch scheduler with a quota for the functions of each group.
fn with_quota(quota_bytes: u64) -> NodeModel {
    let NodeModel::Scheduler(mut setup) = scheduler("reset", 2, 80) else { unreachable!("it was asked for") };
    setup.memory.quota_bytes = Some(quota_bytes);
    NodeModel::Scheduler(setup)
}

/// Requests that find all devices idle, and memory for all functions on each device.
#[test]
fn without_contention_the_same_starts_are_cold_as_on_plain_devices() {
    for entry in PLACEMENTS {
        for seed in 1..4 {
            let mut rng = Rng::new(seed);
            let functions: Vec<_> = (0..8).map(|index| function(index, 1 + rng.below(9))).collect();
            let arrivals = (0..80).map(|i| Arrival { at_ns: i * 40 * MS, function: rng.below(8) as usize }).collect();
            let mut cluster = cluster(entry.name, 3, functions, arrivals);
            cluster.times_known = true;
            cluster.devices.iter_mut().for_each(|device| device.memory_bytes = MIB);
            let plain = simulate_cluster(&cluster);
            cluster.node = scheduler("reset", 8, 320);
            let full = simulate_cluster(&cluster);
            let starts = |report: &ClusterReport| -> Vec<_> {
                report.schedule.iter().map(|it| (it.arrival, it.start_ns, it.device, it.cold)).collect()
            };
            assert_eq!(starts(&plain), starts(&full), "{}, seed {seed}", entry.name);
            assert_eq!((plain.cold, plain.loads, 0), (full.cold, full.loads, full.evictions), "{}", entry.name);
            assert_eq!(memory(&full).loads as usize, full.cold + full.loads, "{}: each is one load", entry.name);
        }
    }
}

/// Four functions, of which three fit the device, under random requests.
#[test]
fn over_committed_memory_is_evicted_and_loaded_again() {
    let mut rng = Rng::new(1);
    let arrivals = (0..300).map(|i| Arrival { at_ns: i * 6 * MS, function: rng.below(4) as usize }).collect();
    let functions = (0..4).map(|index| ClusterFunction { constant_bytes: 5 * KIB, ..function(index, 4) }).collect();
    let mut cluster = cluster("cost", 1, functions, arrivals);
    cluster.devices[0].memory_bytes = 15 * KIB;
    cluster.node = scheduler("reset", 2, 80);
    let report = simulate_cluster(&cluster);
    check(&cluster, &report, "over-committed");
    assert_eq!(report, simulate_cluster(&cluster), "the same cluster gives the same report");
    let memory = memory(&report);
    assert!(memory.evictions > 0, "{memory:?}");
    assert_eq!((memory.loads as usize, memory.evictions as usize), (report.cold, report.evictions));
    assert_eq!((memory.loads - memory.evictions, memory.held_bytes), (3, 15 * KIB));
    assert_eq!(memory.loaded_bytes, memory.loads * 5 * KIB);
    assert!(memory.used_bytes_max <= 15 * KIB + 256, "{memory:?}");
}

#[test]
fn a_group_never_uses_more_than_its_quota() {
    let mut rng = Rng::new(1);
    let functions: Vec<_> = (0..4)
        .map(|index| ClusterFunction {
            group: GroupId(index as u32 % 2),
            constant_bytes: 4 * KIB,
            ..function(index, 2)
        })
        .collect();
    let arrivals: Vec<_> = (0..200).map(|i| Arrival { at_ns: i * 10 * MS, function: rng.below(4) as usize }).collect();
    let run = |node: NodeModel| {
        let mut cluster = cluster("cost", 1, functions.clone(), arrivals.clone());
        cluster.devices[0].memory_bytes = MIB;
        cluster.node = node;
        simulate_cluster(&cluster)
    };
    let free = run(scheduler("reset", 2, 80));
    assert_eq!((memory(&free).loads, memory(&free).evictions), (4, 0), "all four functions fit");
    // One function of each group fits, with a request.
    let limited = run(with_quota(5 * KIB));
    assert_eq!((limited.waits.jobs, limited.rejected), (200, 0));
    assert!(memory(&limited).evictions > 50, "{:?}", memory(&limited));
    assert_eq!(memory(&limited).held_bytes, 8 * KIB, "one function of each group");
    let none = run(with_quota(3 * KIB));
    assert_eq!((none.waits.jobs, none.rejected), (0, 200), "every function is larger than the quota");
}
