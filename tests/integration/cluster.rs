//! Compares the cluster simulation with an independent one, written with simpy.

use anyhow::{Context, Result, ensure};
use atoll_core::Nanos;
use atoll_core::placement::{Visibility, placement_by_name};
use atoll_core::rng::Rng;
use atoll_sim::cluster::thesis::{Costs, NO_STEAL, STEP_NS, cluster, functions};
use atoll_sim::cluster::{Arrival, Cluster, simulate_cluster};
use atoll_tests::{python, root};
use serde_json::{Value, json};
use std::process::Command;

const CASES: u64 = 200;
const POLICIES: [&str; 5] = ["round-robin", "balance", "srtf", "mlfqs", "exclusive"];

/// A random case, in the form of the simulation and in that of the oracle.
fn case(seed: u64) -> (Cluster, Value) {
    let mut rng = Rng::new(seed);
    let policy = POLICIES[(seed % POLICIES.len() as u64) as usize];
    let clients = 1 + rng.below(4) as usize;
    // With fewer devices than groups, `exclusive` has rules that are not in the thesis.
    let least = if policy == "exclusive" { clients as u64 } else { 1 };
    let devices = (least + rng.below(5)) as usize;
    let no_costs = Costs { name: "random", resnet: (0, 1), bert: (0, 1) };
    let mut functions = functions(no_costs, clients);
    let times: Vec<(u64, u64)> = (0..clients).map(|_| (rng.below(11), 1 + rng.below(12))).collect();
    for (function, (cold, run)) in functions.iter_mut().zip(&times) {
        (function.reload_ns, function.service_ns) = (cold * STEP_NS, run * STEP_NS);
    }
    let mut steps: Vec<u64> = (0..5 + rng.below(60)).map(|_| rng.below(80)).collect();
    steps.sort_unstable();
    let arrivals: Vec<(u64, usize)> =
        steps.into_iter().map(|step| (step, rng.below(clients as u64) as usize)).collect();
    let requests = arrivals.iter().map(|&(step, function)| Arrival { at_ns: step * STEP_NS, function }).collect();
    let entry = placement_by_name(policy).expect("a policy of the thesis");
    let mut cluster = cluster(entry, functions, devices, requests);
    let steal = rng.one_in(2);
    if !steal {
        cluster.pool.options.steal = NO_STEAL;
    }
    let sees_future = ["srtf", "mlfqs"].contains(&policy);
    let look_ahead = match rng.below(3) {
        1 if sees_future => 1 + rng.below(5),
        2 if sees_future => 1000,
        _ => 0,
    };
    cluster.pool.options.visibility = match look_ahead {
        0 => Visibility::Online,
        1000 => Visibility::Preloaded,
        ahead => Visibility::LookAhead(Nanos(ahead * STEP_NS)),
    };
    cluster.pool.options.seed = seed;
    let case = json!({
        "policy": policy, "devices": devices, "functions": times, "arrivals": arrivals, "steal": steal,
        "seed": seed, "look_ahead": look_ahead,
    });
    (cluster, case)
}

fn answer(cluster: &Cluster) -> Value {
    let report = simulate_cluster(cluster);
    let mut schedule: Vec<[u64; 4]> = report
        .schedule
        .iter()
        .map(|s| [s.start_ns / STEP_NS, s.arrival.at_ns / STEP_NS, s.arrival.function as u64, s.device as u64])
        .collect();
    schedule.sort_unstable();
    json!({ "schedule": schedule, "moves": report.moves })
}

#[test]
fn random_clusters_are_scheduled_as_a_simpy_program_does() -> Result<()> {
    let (clusters, cases): (Vec<Cluster>, Vec<Value>) = (0..CASES).map(case).unzip();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("cases.json");
    std::fs::write(&file, serde_json::to_vec(&cases)?)?;
    let output = Command::new(python()).arg(root().join("tests/python/cluster.py")).arg(&file).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).context("the oracle's answers")?;
    ensure!(answers.len() == clusters.len(), "{} answers", answers.len());
    for (seed, (cluster, expected)) in clusters.iter().zip(&answers).enumerate() {
        let found = answer(cluster);
        ensure!(found == *expected, "seed {seed}: {}\nfound    {found}\nexpected {expected}", cases[seed]);
    }
    Ok(())
}
