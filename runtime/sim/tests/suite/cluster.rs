//! Clusters with faults, memory and many devices, under all policies.

use atoll_core::placement::{DeviceKind, GroupId, PLACEMENTS, PoolConfig, Suits, placement_by_name};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
use atoll_core::rng::Rng;
use atoll_core::{Class, DeviceId, policy_by_name};
use atoll_sim::cluster::arrivals::{Azure, azure, generate};
use atoll_sim::cluster::{
    Arrival, Cluster, ClusterDevice, ClusterFault, ClusterFunction, ClusterReport, FaultKind, MemorySetup, NodeModel,
    NodeSetup, simulate_cluster,
};
use atoll_sim::device_by_name;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const KIB: u64 = 1 << 10;

pub(crate) fn cluster(
    policy: &str,
    devices: usize,
    functions: Vec<ClusterFunction>,
    arrivals: Vec<Arrival>,
) -> Cluster {
    Cluster {
        pool: PoolConfig::new(placement_by_name(policy).unwrap()),
        residency: residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).unwrap(),
        devices: vec![ClusterDevice { kind: DeviceKind(0), slots: 1, memory_bytes: 10 * KIB, speed: 1.0 }; devices],
        functions,
        arrivals,
        faults: Vec::new(),
        times_known: false,
        step: None,
        node: NodeModel::Plain,
    }
}

/// The launch scheduler on devices with 80 compute units, and memory decisions.
pub(crate) fn scheduler(policy: &str, launches: u32, blocks: u32) -> NodeModel {
    let (policy, device) = (policy_by_name(policy).unwrap(), *device_by_name("v100").unwrap());
    let memory = MemorySetup { request_bytes: 256, quota_bytes: None };
    NodeModel::Scheduler(NodeSetup { policy, device, queue_capacity: 4, launches, blocks, memory })
}

pub(crate) fn function(index: usize, service_ms: u64) -> ClusterFunction {
    ClusterFunction {
        name: format!("f{index}"),
        group: GroupId(index as u32 % 3),
        class: Class::BestEffort,
        service_ns: service_ms * MS,
        reload_ns: 3 * MS,
        constant_bytes: (1 + index as u64 % 4) * KIB,
        suits: Suits::All,
    }
}

/// A random cluster whose devices are lost and drained. All of them are back in the end.
fn random(policy: &str, seed: u64) -> Cluster {
    let mut rng = Rng::new(seed);
    let mut functions: Vec<_> = (0..12).map(|index| function(index, 1 + rng.below(9))).collect();
    functions[0].class = Class::RealTime;
    functions[1].suits = Suits::Only(vec![DeviceId(2)]);
    let count = functions.len() as u64;
    let mut arrivals: Vec<Arrival> =
        (0..400).map(|_| Arrival { at_ns: rng.below(600) * MS, function: rng.below(count) as usize }).collect();
    arrivals.sort_unstable();
    let mut cluster = cluster(policy, 4, functions, arrivals);
    for device in &mut cluster.devices {
        device.slots = 1 + rng.below(2) as u32;
    }
    cluster.devices[3] = ClusterDevice { kind: DeviceKind(1), speed: 0.5, ..cluster.devices[3] };
    // Device 0 is never lost: without any device, requests would be rejected.
    for device in [1, 3] {
        let at = rng.below(300) * MS;
        let kinds = [(0, FaultKind::Lost), (50, FaultKind::Back), (100, FaultKind::Drained), (150, FaultKind::Resumed)];
        cluster.faults.extend(kinds.map(|(after, kind)| ClusterFault { at_ns: at + after * MS, device, kind }));
    }
    cluster.faults.sort_by_key(|fault| fault.at_ns);
    cluster
}

pub(crate) fn check(cluster: &Cluster, report: &ClusterReport, name: &str) {
    assert_eq!(report.waits.jobs, cluster.arrivals.len(), "{name}: every request is answered once");
    assert_eq!(report.rejected, 0, "{name}");
    assert_eq!(report.dispatches, report.waits.jobs + report.retries, "{name}");
    let by_function: usize = report.functions.iter().map(|function| function.waits.jobs).sum();
    assert_eq!(by_function, report.waits.jobs);
    for scheduled in &report.schedule {
        assert!(scheduled.arrival.at_ns <= scheduled.start_ns && scheduled.start_ns < scheduled.end_ns);
        let suits = &cluster.functions[scheduled.arrival.function].suits;
        assert!(suits.contains(DeviceId(scheduled.device as u16)));
    }
}

#[test]
fn every_request_is_answered_once_although_devices_come_and_go() {
    for entry in PLACEMENTS {
        let mut retries = 0;
        for seed in 0..20 {
            let cluster = random(entry.name, seed);
            let report = simulate_cluster(&cluster);
            check(&cluster, &report, &format!("{}, seed {seed}", entry.name));
            assert_eq!(report, simulate_cluster(&cluster), "a seed gives one run");
            assert_eq!((report.launches, report.memory), (None, None), "plain devices have no launches");
            retries += report.retries;
        }
        assert!(retries > 0, "{}: devices were lost while they were busy", entry.name);
    }
}

#[test]
fn the_same_holds_with_the_launch_scheduler_on_every_device() {
    for (placement, policy) in PLACEMENTS.iter().zip(["reset", "reef", "streams", "sequential", "edf"].iter().cycle()) {
        let (mut retries, mut launches, mut preemptions, mut evictions) = (0, 0, 0, 0);
        for seed in 0..20 {
            let mut cluster = random(placement.name, seed);
            // Launches that fill the device, and ones that leave compute units idle.
            cluster.node = scheduler(policy, 1 + seed as u32 % 7, if seed % 2 == 0 { 240 } else { 30 });
            let report = simulate_cluster(&cluster);
            check(&cluster, &report, &format!("{} over {policy}, seed {seed}", placement.name));
            assert_eq!(report, simulate_cluster(&cluster), "a seed gives one run");
            let memory = report.memory.expect("the loads are counted");
            assert_eq!(memory.loaded_bytes, memory.evicted_bytes + memory.held_bytes, "{seed}: bytes add up");
            evictions += memory.evictions;
            let counts = report.launches.expect("the launches are counted");
            assert!(counts.launches >= report.waits.jobs as u64, "every answered request was launched");
            retries += report.retries;
            launches += counts.launches;
            preemptions += counts.preemptions;
        }
        assert!(retries > 0 && launches > 0, "{}: devices were lost while they were busy", placement.name);
        assert!(evictions > 0, "{}: not all functions fit the devices", placement.name);
        let preempts = !["streams", "sequential"].contains(policy);
        assert_eq!(preemptions > 0, preempts, "{policy}: {preemptions} preemptions");
    }
}

/// The plain model is the launch scheduler without its latencies: one after the other, a request
/// takes the latency of a launch and of a completion longer, and nothing else changes.
#[test]
fn requests_one_after_the_other_differ_by_the_latencies_of_a_launch() {
    let arrivals: Vec<_> = (0..60).map(|i| Arrival { at_ns: i * 40 * MS, function: i as usize % 3 }).collect();
    let functions: Vec<_> = (0..3).map(|index| function(index, 2 + 2 * index as u64)).collect();
    for entry in PLACEMENTS {
        let mut cluster = cluster(entry.name, 2, functions.clone(), arrivals.clone());
        cluster.times_known = true;
        let plain = simulate_cluster(&cluster);
        cluster.node = scheduler("reset", 8, 320);
        let scheduled = simulate_cluster(&cluster);
        assert_eq!((plain.cold, plain.dispatches), (scheduled.cold, scheduled.dispatches), "{}", entry.name);
        let costs = device_by_name("v100").unwrap().costs;
        for (plain, scheduled) in plain.schedule.iter().zip(&scheduled.schedule) {
            let longer = costs.launch_ns + costs.completion_ns;
            assert_eq!((plain.arrival, plain.start_ns), (scheduled.arrival, scheduled.start_ns), "{}", entry.name);
            assert_eq!(plain.end_ns + longer, scheduled.end_ns, "{}", entry.name);
        }
    }
}

#[test]
fn requests_that_the_launch_scheduler_refuses_are_rejected_after_all_attempts() {
    let arrivals: Vec<_> = (0..10).map(|i| Arrival { at_ns: i * MS, function: i as usize % 2 }).collect();
    let mut functions = vec![function(0, 1), function(1, 1)];
    functions[1].class = Class::RealTime;
    let mut cluster = cluster("balance", 2, functions, arrivals);
    cluster.node = scheduler("rt-only", 2, 80);
    let report = simulate_cluster(&cluster);
    let attempts = cluster.pool.attempts_max as usize;
    assert_eq!((report.waits.jobs, report.rejected), (5, 5));
    assert_eq!(report.dispatches, 5 + 5 * attempts);
}

#[test]
fn memory_decides_how_many_starts_are_cold() {
    let arrivals: Vec<_> = (0..400).map(|i| Arrival { at_ns: i * 10 * MS, function: i as usize % 4 }).collect();
    let functions: Vec<_> = (0..4).map(|index| ClusterFunction { constant_bytes: 5, ..function(index, 4) }).collect();
    let cold = |memory_bytes| {
        let mut cluster = cluster("cost", 1, functions.clone(), arrivals.clone());
        cluster.devices[0].memory_bytes = memory_bytes;
        let report = simulate_cluster(&cluster);
        check(&cluster, &report, cluster.pool.policy.name);
        (report.cold, report.evictions)
    };
    assert_eq!(cold(20), (4, 0), "all four fit");
    assert_eq!(cold(5), (400, 399), "one fits");
    let (some, _) = cold(15);
    assert!((5..300).contains(&some), "three of four fit: {some}");
}

#[test]
fn a_second_slot_hides_loads() {
    let arrivals: Vec<_> = (0..200).map(|i| Arrival { at_ns: i, function: i as usize % 4 }).collect();
    let total = |slots| {
        let functions = (0..4).map(|index| ClusterFunction { constant_bytes: 5 * KIB, ..function(index, 4) }).collect();
        let mut cluster = cluster("balance", 1, functions, arrivals.clone());
        cluster.devices[0].slots = slots;
        let report = simulate_cluster(&cluster);
        check(&cluster, &report, cluster.pool.policy.name);
        (report.total_ns / MS, report.cold as u64)
    };
    let (time, cold) = total(1);
    assert_eq!(time, 200 * 4 + cold * 3, "each load of 3 ms precedes its run of 4 ms");
    let (time, cold) = total(2);
    assert!(cold > 100 && time <= 200 * 4 + 3 * 3, "{cold} loads are hidden: {time} ms");
}

#[test]
fn a_real_time_request_preempts_and_the_others_go_on() {
    let mut functions = vec![function(0, 10), function(1, 2)];
    functions[1].class = Class::RealTime;
    let arrivals = [(0, 0), (5 * MS, 1)].map(|(at_ns, function)| Arrival { at_ns, function });
    let report = simulate_cluster(&cluster("balance", 1, functions, arrivals.into()));
    let ends: Vec<u64> = report.schedule.iter().map(|scheduled| scheduled.end_ns / MS).collect();
    assert_eq!(ends, [15, 10], "3 + 10 + 2 preempted, and 5 + 3 + 2");
}

/// A GPU, and a CPU that takes fifty times as long.
#[test]
fn a_slow_device_beside_a_fast_one_never_makes_requests_later() {
    let functions: Vec<_> = (0..3).map(|index| function(index, 2)).collect();
    let run = |interval_ns: u64, seed: u64, devices: &[(u16, f64)]| {
        let mut rng = Rng::new(seed);
        let mut at_ns = 0;
        let mut arrivals = Vec::new();
        for _ in 0..1_000 {
            at_ns += rng.below(2 * interval_ns);
            arrivals.push(Arrival { at_ns, function: rng.below(3) as usize });
        }
        let mut cluster = cluster("cost", devices.len(), functions.clone(), arrivals);
        for (device, (kind, speed)) in cluster.devices.iter_mut().zip(devices) {
            *device = ClusterDevice { kind: DeviceKind(*kind), speed: *speed, slots: 2, ..*device };
        }
        cluster.times_known = true;
        let report = simulate_cluster(&cluster);
        check(&cluster, &report, "cost");
        let on_second = report.schedule.iter().filter(|scheduled| scheduled.device == 1).count();
        (report.waits.mean_completion_ns, on_second)
    };
    // Requests of 2 ms arrive every 2.5 ms, then every 1.5 ms.
    for (interval_ns, is_overload) in [(2_500_000, false), (1_500_000, true)] {
        for seed in 1..6 {
            let (alone, _) = run(interval_ns, seed, &[(0, 1.0)]);
            let (both, on_cpu) = run(interval_ns, seed, &[(0, 1.0), (1, 0.02)]);
            assert!(
                both <= alone * 1.001,
                "{interval_ns} ns, seed {seed}: {both} ns, alone {alone}; {on_cpu} on the CPU"
            );
            assert_eq!(on_cpu > 0, is_overload, "{interval_ns} ns, seed {seed}: {on_cpu} requests");
        }
    }
}

#[test]
fn ten_thousand_devices_run_the_shape_of_azure() {
    let options = Azure { functions: 300, load: 2_000.0, service_s_max: 1.0, bytes_per_s: 1e10, seed: 1 };
    let (functions, processes) = azure(&options);
    let arrivals = generate(&processes, 2.0, 1);
    assert!(arrivals.len() > 1000, "{}", arrivals.len());
    let mut cluster = cluster("cost", 10_000, functions, arrivals);
    for device in &mut cluster.devices {
        device.memory_bytes = 80_000_000_000;
    }
    let report = simulate_cluster(&cluster);
    check(&cluster, &report, "azure");
    assert!(report.waits.mean_wait_ns < 1e6, "devices are idle: {} ns", report.waits.mean_wait_ns);
}
