//! The workloads of "Kernel-as-a-Service" scheduling (A. Ramkumar's thesis, chapter 6). Time in the
//! thesis's simulator has integer steps. A step is [`STEP_NS`] here.
//!
//! The printed traces of §6.1 are consistent with a single set of times: a cold ResNet takes 6
//! steps, a warm one 2, a cold BERT 18. The text of the chapter states other times (5 + 5 and 10 +
//! 20); the preset `prose` has these.

use super::report::ClusterReport;
use super::setup::{Arrival, Cluster, ClusterDevice, ClusterFunction, NodeModel};
use atoll_core::placement::{DeviceKind, GroupId, PlacementEntry, PoolConfig, Steal, StealMeasure, Suits, Visibility};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
use atoll_core::rng::Rng;
use atoll_core::{Class, Nanos};

/// A step of the thesis's simulator: 1 ms.
pub const STEP_NS: u64 = 1_000_000;

/// Cold start and run time of the two models, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Name of the preset.
    pub name: &'static str,
    /// ResNet: load time and run time.
    pub resnet: (u64, u64),
    /// BERT: load time and run time.
    pub bert: (u64, u64),
}

/// The presets: `thesis` reproduces the printed traces, `prose` has the times of the text.
pub const COSTS: [Costs; 2] =
    [Costs { name: "thesis", resnet: (4, 2), bert: (10, 8) }, Costs { name: "prose", resnet: (5, 5), bert: (10, 20) }];

/// The policies of the thesis, in its order.
pub const POLICIES: [&str; 5] = ["round-robin", "balance", "srtf", "mlfqs", "exclusive"];

/// A seed with which `mlfqs` draws the buckets of the printed trace.
pub const MLFQS_SEED: u64 = 9;

/// The functions of `clients` clients, which have ResNet and BERT alternately.
pub fn functions(costs: Costs, clients: usize) -> Vec<ClusterFunction> {
    let function = |client: usize| {
        let (model, (cold, run)) =
            if client.is_multiple_of(2) { ("RESNET", costs.resnet) } else { ("BERT", costs.bert) };
        ClusterFunction {
            name: if clients == 2 { model.into() } else { format!("{model}{}", client + 1) },
            group: GroupId(client as u32),
            class: Class::BestEffort,
            service_ns: run * STEP_NS,
            reload_ns: cold * STEP_NS,
            constant_bytes: 0,
            suits: Suits::All,
        }
    };
    (0..clients).map(function).collect()
}

/// The cluster of the thesis: equal devices with one slot and room for all functions.
pub fn cluster(
    policy: &'static PlacementEntry,
    functions: Vec<ClusterFunction>,
    devices: usize,
    arrivals: Vec<Arrival>,
) -> Cluster {
    let device = ClusterDevice { kind: DeviceKind(0), slots: 1, memory_bytes: u64::MAX, speed: 1.0 };
    Cluster {
        pool: PoolConfig::new(policy),
        residency: residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is in the table"),
        devices: vec![device; devices],
        functions,
        arrivals,
        faults: Vec::new(),
        times_known: true,
        step: Some(Nanos(STEP_NS)),
        node: NodeModel::Plain,
    }
}

/// The example of §6.1: two devices; ResNet at 0, 2 and 3, BERT at 1. `srtf` and `mlfqs` know all
/// requests from the start, as the printed traces require.
pub fn example(policy: &'static PlacementEntry, costs: Costs) -> Cluster {
    let arrivals = [(0, 0), (1, 1), (2, 0), (3, 0)];
    let arrivals = arrivals.map(|(at, function)| Arrival { at_ns: at * STEP_NS, function });
    let mut cluster = cluster(policy, functions(costs, 2), 2, arrivals.into());
    cluster.pool.options.visibility = Visibility::Preloaded;
    cluster.pool.options.seed = MLFQS_SEED;
    cluster
}

/// The text that the thesis's simulator prints for a run, with times in steps.
pub fn printed(cluster: &Cluster, report: &ClusterReport) -> String {
    let steps = |ns: f64| ns / STEP_NS as f64;
    let model = |function: usize| format!("ModelType.{}", cluster.functions[function].name);
    let mut text = String::new();
    for scheduled in &report.schedule {
        text += &format!(
            "Request(arrival_time={}, model_type={}) is being scheduled at timestep {} on resource GPU{}\n",
            scheduled.arrival.at_ns / STEP_NS,
            model(scheduled.arrival.function),
            scheduled.start_ns / STEP_NS,
            scheduled.device + 1
        );
    }
    let hits = report.schedule.len() - report.cold;
    text += &format!("Total time taken is: {}\n", report.total_ns / STEP_NS);
    text += &format!("Total cold starts is: {}\nTotal cache hits is: {hits}\n", report.cold);
    text += &format!("Cache hit percentage is: {:?}\n", hits as f64 / report.schedule.len() as f64);
    text += &format!("Average time waiting is: {:?}\n", steps(report.waits.mean_wait_ns));
    for (index, function) in report.functions.iter().enumerate() {
        text += &format!("Client(name=Client{}, model_type={}):\n", index + 1, model(index));
        text += &format!("Average time on queue is {:?}\n", steps(function.waits.mean_wait_ns));
    }
    text
}

/// Poisson arrivals in steps: client `i` has the seed `seed + i` and `rate` requests per step,
/// until `horizon`.
pub fn poisson(clients: usize, rate: f64, horizon: u64, seed: u64) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    for function in 0..clients {
        let mut rng = Rng::new(seed.wrapping_add(function as u64));
        let mut at = 0.0;
        loop {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            at += -(1.0 - unit).ln() / rate;
            if at >= horizon as f64 {
                break;
            }
            arrivals.push(Arrival { at_ns: at as u64 * STEP_NS, function });
        }
    }
    arrivals.sort_by_key(|arrival| arrival.at_ns);
    arrivals
}

/// The rule of `exclusive` without moves, as in the thesis's Poisson run.
pub const NO_STEAL: Steal = Steal { measure: StealMeasure::Never, percent: 150, hysteresis: Nanos(0) };

#[cfg(test)]
mod tests;
