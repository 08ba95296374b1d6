//! Clusters and their requests, from flags.

use super::Args;
use anyhow::{Context, Result, bail, ensure};
use atoll_core::placement::{DeviceKind, GroupId, PlacementEntry, PoolConfig, Suits};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
use atoll_core::{Class, Nanos};
use atoll_sim::cluster::arrivals::{Azure, Process, azure, generate};
use atoll_sim::cluster::thesis::{NO_STEAL, STEP_NS, poisson};
use atoll_sim::cluster::{Arrival, Cluster, ClusterDevice, ClusterFault, ClusterFunction, FaultKind, NodeModel};
use std::path::Path;
use std::str::FromStr;

/// Bytes of the constants of each function, unless they are random.
const CONSTANT_BYTES: u64 = 1 << 20;
/// Requests of a burst.
const BURST: u32 = 10;
/// The two rates of an MMPP, as multiples of the mean rate, and the mean length of a state.
const MMPP: (f64, f64, u64) = (0.2, 1.8, 200);
/// Steps per second.
const STEPS_PER_S: f64 = 1000.0;
/// Functions of azure: the longest service time, and the bandwidth at which constants are loaded.
const AZURE: (f64, f64) = (1.0, 10e9);
/// Largest file with a trace, in bytes, and its largest number of requests.
const TRACE_MAX: (u64, usize) = (256 << 20, 10_000_000);
/// Most requests of a run, so that it fits into memory.
const REQUESTS_MAX: f64 = 50e6;

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ArrivalKind {
    /// Independent of each other, at whole steps
    Poisson,
    /// Ten at a time
    Bursts,
    /// Quiet and busy times in turn (Markov-modulated Poisson process)
    Mmpp,
    /// Many functions in the shape of Azure's published workload
    Azure,
}

/// A run of a sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) devices: u16,
    pub(super) rate: f64,
    pub(super) seed: u64,
}

/// A device that is lost, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    lost: u64,
    device: usize,
    back: Option<u64>,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |part: &str| part.parse::<u64>().map_err(|e| format!("`{part}`: {e}"));
        let (lost, device, back) = match parts[..] {
            [lost, device] => (number(lost)?, number(device)?, None),
            [lost, device, back] => (number(lost)?, number(device)?, Some(number(back)?)),
            _ => return Err("write STEP:DEVICE or STEP:DEVICE:STEP".into()),
        };
        if back.is_some_and(|back| back <= lost) || lost.max(back.unwrap_or(0)) > u64::MAX / STEP_NS {
            return Err("the device comes back after it is lost".into());
        }
        Ok(Fault { lost, device: device as usize, back })
    }
}

/// Functions and their requests.
pub(super) struct Workload {
    functions: Vec<ClusterFunction>,
    arrivals: Vec<Arrival>,
}

/// The functions and requests of a point.
pub(super) fn of(args: &Args, point: Point) -> Result<Workload> {
    ensure!(point.rate.is_finite() && point.rate > 0.0, "--rate {}: a rate is above 0", point.rate);
    let clients = args.clients as usize;
    ensure!(!args.cold.is_empty() && !args.run.is_empty(), "--cold and --run have at least one value");
    let longest = args.cold.iter().chain(&args.run).max().copied().unwrap_or(0);
    ensure!(longest <= 1_000_000, "--cold and --run: {longest} steps, at most 1000000 are allowed");
    ensure!(!args.run.contains(&0), "--run 0: a request takes at least one step");
    let seconds = args.steps as f64 / STEPS_PER_S;
    if args.arrivals == ArrivalKind::Azure && args.trace.is_none() {
        let (service_s_max, bytes_per_s) = AZURE;
        let load = point.rate * f64::from(point.devices);
        let options = Azure { functions: clients, load, service_s_max, bytes_per_s, seed: point.seed };
        let (mut functions, processes) = azure(&options);
        for function in functions.iter_mut().take(args.real_time as usize) {
            function.class = Class::RealTime;
        }
        let arrivals = generate(&processes, seconds, point.seed);
        return Ok(Workload { functions, arrivals });
    }
    let requests = point.rate * args.steps as f64 * clients as f64;
    ensure!(requests <= REQUESTS_MAX, "{requests:.0} requests are too many for a run; at most {REQUESTS_MAX:.0} are");
    let rate = point.rate * STEPS_PER_S;
    let process = match args.arrivals {
        ArrivalKind::Bursts => Process::Bursts { rate, size: BURST },
        _ => {
            let (quiet, busy, state) = MMPP;
            Process::Mmpp { quiet: quiet * rate, busy: busy * rate, state_s: state as f64 / STEPS_PER_S }
        }
    };
    let arrivals = match (&args.trace, args.arrivals) {
        (Some(path), _) => recorded(path, clients)?,
        (None, ArrivalKind::Poisson) => poisson(clients, point.rate, args.steps, point.seed),
        (None, _) => generate(&vec![process; clients], seconds, point.seed),
    };
    Ok(Workload { functions: functions(args, clients), arrivals })
}

fn functions(args: &Args, clients: usize) -> Vec<ClusterFunction> {
    let function = |client: usize| ClusterFunction {
        name: format!("client{}", client + 1),
        group: GroupId(client as u32),
        class: if client < args.real_time as usize { Class::RealTime } else { Class::BestEffort },
        service_ns: args.run[client % args.run.len()] * STEP_NS,
        reload_ns: args.cold[client % args.cold.len()] * STEP_NS,
        constant_bytes: CONSTANT_BYTES,
        suits: Suits::All,
    };
    (0..clients).map(function).collect()
}

/// A recorded trace.
fn recorded(path: &Path, clients: usize) -> Result<Vec<Arrival>> {
    let name = path.display();
    let bytes = std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
    ensure!(bytes <= TRACE_MAX.0, "{name}: {bytes} bytes, at most {} are read", TRACE_MAX.0);
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = index + 1;
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [step, client] = fields[..] else {
            bail!("{name}, line {line_number}: `{line}`; write a step and the index of a client");
        };
        let at: u64 = step.parse().with_context(|| format!("{name}, line {line_number}: the step `{step}`"))?;
        let function: usize =
            client.parse().with_context(|| format!("{name}, line {line_number}: the client `{client}`"))?;
        ensure!(function < clients, "{name}, line {line_number}: client {function}; --clients is {clients}");
        let at_ns = at.checked_mul(STEP_NS).filter(|at| *at < u64::MAX / 4);
        let at_ns = at_ns.with_context(|| format!("{name}, line {line_number}: step {at} is too late"))?;
        ensure!(
            arrivals.last().is_none_or(|last| last.at_ns <= at_ns),
            "{name}, line {line_number}: step {at} is before the previous one"
        );
        ensure!(arrivals.len() < TRACE_MAX.1, "{name}: more than {} requests", TRACE_MAX.1);
        arrivals.push(Arrival { at_ns, function });
    }
    Ok(arrivals)
}

/// Checks that each device that fails exists. In a sweep of device counts it may exist in some only.
pub(super) fn check_faults(args: &Args) -> Result<()> {
    let most = args.devices.iter().copied().max().unwrap_or(0);
    for fault in &args.fail {
        ensure!(
            fault.device < usize::from(most),
            "--fail names device {}; with --devices {most} the last one is {}",
            fault.device,
            most - 1
        );
    }
    Ok(())
}

/// The cluster of a point with a policy.
pub(super) fn cluster(args: &Args, point: Point, policy: &'static PlacementEntry, workload: &Workload) -> Cluster {
    let mut sizes: Vec<u64> = workload.functions.iter().map(|function| function.constant_bytes).collect();
    sizes.sort_unstable();
    // Of functions of different sizes, the largest fit.
    let memory_bytes = match args.fit {
        Some(fit) => sizes.iter().rev().take(fit as usize).sum::<u64>().max(sizes.last().copied().unwrap_or(0)),
        None => u64::MAX,
    };
    let device = ClusterDevice { kind: DeviceKind(0), slots: args.slots, memory_bytes, speed: 1.0 };
    let mut pool = PoolConfig::new(policy);
    pool.waiting_max = usize::MAX;
    // As in the reference runs of the simulation's tests.
    pool.options.seed = point.seed.wrapping_add(1000);
    if args.no_steal {
        pool.options.steal = NO_STEAL;
    }
    let mut faults = Vec::new();
    for fault in args.fail.iter().filter(|fault| fault.device < usize::from(point.devices)) {
        let at = |step: u64, kind| ClusterFault { at_ns: step * STEP_NS, device: fault.device, kind };
        faults.push(at(fault.lost, FaultKind::Lost));
        faults.extend(fault.back.map(|back| at(back, FaultKind::Back)));
    }
    faults.sort_by_key(|fault| fault.at_ns);
    Cluster {
        pool,
        residency: residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is in the table"),
        devices: vec![device; usize::from(point.devices)],
        functions: workload.functions.clone(),
        arrivals: workload.arrivals.clone(),
        faults,
        times_known: !args.learn,
        // Only `exclusive` moves devices without an event.
        step: (policy.name == "exclusive" && args.arrivals != ArrivalKind::Azure).then_some(Nanos(STEP_NS)),
        node: NodeModel::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_wrong_ones_refused() {
        assert_eq!("5:1".parse(), Ok(Fault { lost: 5, device: 1, back: None }));
        assert_eq!("5:1:9".parse(), Ok(Fault { lost: 5, device: 1, back: Some(9) }));
        for wrong in ["", "5", "5:1:5", "5:1:4", "a:1", "5:1:2:3", "18446744073709551615:0"] {
            assert!(wrong.parse::<Fault>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn traces_are_read_and_wrong_lines_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            recorded(&path, 2).map_err(|e| format!("{e:#}"))
        };
        let arrivals = [(0, 0), (3, 1)].map(|(step, function)| Arrival { at_ns: step * STEP_NS, function });
        assert_eq!(read("0 0\n\n3 1\n"), Ok(arrivals.into()));
        for (text, part) in [
            ("0 0\n1", "line 2: `1`"),
            ("x 0", "the step `x`"),
            ("0 2", "client 2; --clients is 2"),
            ("5 0\n4 0", "line 2: step 4 is before"),
            ("18446744073709551615 0", "is too late"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
