//! `atoll bench cluster --replay`: the latencies that the simulation predicts for a recorded run of
//! leases on several machines, beside those that were measured.

use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Context, Result, ensure};
use atoll_core::placement::{DeviceKind, GroupId, PoolConfig, Suits, placement_by_name};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
use atoll_core::{Class, DeviceId};
use atoll_sim::cluster::{
    Arrival, Cluster, ClusterDevice, ClusterFunction, ClusterReport, NodeModel, simulate_cluster,
};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;

/// Largest file of a run, in bytes, and its largest numbers of leases and requests.
const RUN_MAX: (u64, usize, usize) = (256 << 20, 10_000, 5_000_000);

/// Latest time and longest duration of a run, in nanoseconds: about an hour.
const TIME_MAX_NS: u64 = 1 << 42;

/// Most time that the requests of a lease may take together, in nanoseconds: about 20 hours.
const END_MAX_NS: u64 = TIME_MAX_NS << 4;

/// Requests that a lease gets before others wait for it.
const SLOTS: u32 = 1024;

/// A recorded run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    leases: Vec<Lease>,
    /// By ascending time.
    requests: Vec<Request>,
}

/// A lease that serves one request after the other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lease {
    /// Its machine.
    node: String,
    /// From one request to the next one if requests always wait, in nanoseconds.
    service_ns: u64,
    /// What a request takes besides, for example on its way, in nanoseconds.
    beside_ns: u64,
}

/// A request, and the latency that was measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    at_ns: u64,
    /// Index of its lease.
    lease: usize,
    latency_ns: u64,
}

/// Mean and 99th percentile of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    mean_ns: f64,
    p99_ns: f64,
}

impl Figures {
    /// The figures of at least one latency. The percentile is by nearest rank.
    fn of(mut latencies: Vec<u64>) -> Figures {
        latencies.sort_unstable();
        let rank = (latencies.len() * 99).div_ceil(100).max(1) - 1;
        let sum: u128 = latencies.iter().copied().map(u128::from).sum();
        Figures { mean_ns: sum as f64 / latencies.len() as f64, p99_ns: latencies[rank] as f64 }
    }
}

/// Predicts the run in a file, and compares.
pub(super) fn run(path: &Path) -> Result<Findings> {
    let name = path.display();
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
    ensure!(bytes <= RUN_MAX.0, "{name}: {bytes} bytes, at most {} are read", RUN_MAX.0);
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let run: Run = serde_json::from_str(&text).with_context(|| format!("{name} is not a recorded run"))?;
    run.check().with_context(|| name.to_string())?;
    let measured = Figures::of(run.requests.iter().map(|request| request.latency_ns).collect());
    let predicted = run.predicted();
    let rows = [("mean", predicted.mean_ns, measured.mean_ns), ("p99", predicted.p99_ns, measured.p99_ns)];
    let percent = |predicted: f64, measured: f64| 100.0 * (predicted / measured - 1.0);
    let mut table = Table::new([
        ("latency", Align::Left),
        ("predicted", Align::Right),
        ("measured", Align::Right),
        ("difference", Align::Right),
    ]);
    for (name, predicted, measured) in rows {
        let ms = |ns: f64| format!("{:.2} ms", ns / 1e6);
        let difference = format!("{:+.1} %", percent(predicted, measured));
        table.row([name.into(), ms(predicted), ms(measured), difference]);
    }
    let json = json!({
        "nodes": run.nodes(),
        "leases": run.leases.len(),
        "requests": run.requests.len(),
        "predicted_mean_ns": predicted.mean_ns,
        "predicted_p99_ns": predicted.p99_ns,
        "measured_mean_ns": measured.mean_ns,
        "measured_p99_ns": measured.p99_ns,
        "mean_difference_percent": percent(predicted.mean_ns, measured.mean_ns),
        "p99_difference_percent": percent(predicted.p99_ns, measured.p99_ns),
    });
    Findings::new(&json, table)
}

impl Run {
    fn check(&self) -> Result<()> {
        let (_, leases_max, requests_max) = RUN_MAX;
        let (leases, requests) = (self.leases.len(), self.requests.len());
        ensure!((1..=leases_max).contains(&leases), "{leases} leases; 1 to {leases_max} are possible");
        ensure!((1..=requests_max).contains(&requests), "{requests} requests; 1 to {requests_max} are possible");
        for (index, lease) in self.leases.iter().enumerate() {
            let is_possible = (1..=TIME_MAX_NS).contains(&lease.service_ns) && lease.beside_ns <= TIME_MAX_NS;
            ensure!(is_possible, "lease {index}: {} and {} ns", lease.service_ns, lease.beside_ns);
        }
        for (index, request) in self.requests.iter().enumerate() {
            ensure!(request.lease < leases, "request {index}: there is no lease {}", request.lease);
            let is_possible = request.at_ns <= TIME_MAX_NS && (1..=TIME_MAX_NS).contains(&request.latency_ns);
            ensure!(is_possible, "request {index}: at {} ns, {} ns", request.at_ns, request.latency_ns);
        }
        let mut ends_ns = vec![0_u64; leases];
        for Request { lease, .. } in &self.requests {
            ends_ns[*lease] = ends_ns[*lease].saturating_add(self.leases[*lease].service_ns);
            ensure!(ends_ns[*lease] <= END_MAX_NS, "lease {lease}: its requests take over {END_MAX_NS} ns together");
        }
        let is_sorted = self.requests.is_sorted_by_key(|request| request.at_ns);
        ensure!(is_sorted, "the requests are not by ascending time");
        Ok(())
    }

    fn nodes(&self) -> usize {
        let mut nodes: Vec<&str> = self.leases.iter().map(|lease| lease.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// The latencies in a simulation of the same requests.
    fn predicted(&self) -> Figures {
        let report = self.simulated();
        let latency = |scheduled: &atoll_sim::cluster::Scheduled| {
            let arrival = scheduled.arrival;
            scheduled.end_ns - arrival.at_ns + self.leases[arrival.function].beside_ns
        };
        Figures::of(report.schedule.iter().map(latency).collect())
    }

    /// Each lease is a device with a function of its own, since a client chooses the lease of a
    /// request. The device gets each request when it arrives, and runs one after the other.
    fn simulated(&self) -> ClusterReport {
        let function = |(index, lease): (usize, &Lease)| ClusterFunction {
            name: format!("lease {index} on {}", lease.node),
            group: GroupId(index as u32),
            class: Class::BestEffort,
            service_ns: lease.service_ns,
            reload_ns: 0,
            constant_bytes: 1,
            suits: Suits::Only(vec![DeviceId(index as u16)]),
        };
        let device = ClusterDevice { kind: DeviceKind(0), slots: SLOTS, memory_bytes: u64::MAX, speed: 1.0 };
        let mut pool = PoolConfig::new(placement_by_name("balance").expect("a policy of the table"));
        pool.waiting_max = usize::MAX;
        simulate_cluster(&Cluster {
            pool,
            residency: residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is in the table"),
            devices: vec![device; self.leases.len()],
            functions: self.leases.iter().enumerate().map(function).collect(),
            arrivals: self
                .requests
                .iter()
                .map(|request| Arrival { at_ns: request.at_ns, function: request.lease })
                .collect(),
            faults: Vec::new(),
            times_known: true,
            step: None,
            node: NodeModel::Plain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const MS: u64 = 1_000_000;

    fn replayed(run: &Value) -> Result<Value> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("run.json");
        std::fs::write(&path, run.to_string())?;
        Ok(serde_json::from_str(&super::run(&path)?.json)?)
    }

    #[test]
    fn requests_wait_for_those_of_their_own_lease() {
        let request = |at_ms: u64, lease: usize| json!({ "at_ns": at_ms * MS, "lease": lease, "latency_ns": 20 * MS });
        let lease = |node: &str| json!({ "node": node, "service_ns": 10 * MS, "beside_ns": 2 * MS });
        // On the first lease 12, 22 and 27 ms, on the other one 12 ms.
        let run = json!({
            "leases": [lease("a"), lease("b")],
            "requests": [request(0, 0), request(0, 0), request(0, 1), request(5, 0)],
        });
        let found = replayed(&run).unwrap();
        let figure = |name: &str| found[name].as_f64().unwrap();
        assert_eq!(figure("predicted_mean_ns"), (12 + 22 + 12 + 27) as f64 / 4.0 * MS as f64, "{found}");
        assert_eq!(figure("predicted_p99_ns"), (27 * MS) as f64, "{found}");
        assert_eq!((figure("measured_mean_ns"), &found["nodes"]), ((20 * MS) as f64, &json!(2)));
        assert!((figure("p99_difference_percent") - 35.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn bad_runs_are_refused_with_the_cause() {
        let lease = json!({ "node": "a", "service_ns": 1, "beside_ns": 0 });
        let slow = json!({ "node": "a", "service_ns": TIME_MAX_NS, "beside_ns": 0 });
        let request = |at_ns: u64, lease: usize| json!({ "at_ns": at_ns, "lease": lease, "latency_ns": 1 });
        for (run, says) in [
            (json!([]), "is not a recorded run"),
            (json!({ "leases": [], "requests": [request(0, 0)] }), "0 leases"),
            (json!({ "leases": [lease], "requests": [] }), "0 requests"),
            (json!({ "leases": [lease], "requests": [request(0, 1)] }), "there is no lease 1"),
            (json!({ "leases": [lease], "requests": [request(5, 0), request(4, 0)] }), "ascending"),
            (
                json!({ "leases": [{ "node": "a", "service_ns": 0, "beside_ns": 0 }], "requests": [request(0, 0)] }),
                "lease 0",
            ),
            (json!({ "leases": [lease], "requests": [request(u64::MAX, 0)] }), "request 0"),
            (json!({ "leases": [slow], "requests": vec![request(0, 0); 17] }), "take over 70368744177664 ns"),
        ] {
            let error = format!("{:#}", replayed(&run).unwrap_err());
            assert!(error.contains(says), "{run}: {error}");
        }
    }
}
