//! `atoll bench placement`: placement policies in simulation beside the same policies in a fleet.

mod report;

use super::cluster::policies;
use super::functions::variants::{Scale, Variants};
use crate::device_name::DeviceName;
use crate::devices::DeviceSpec;
use crate::engine::start_pool;
use crate::failure::OrUserError;
use crate::invoker;
use crate::output::parse_seconds;
use crate::random::Random;
use crate::report::Findings;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_core::placement::{DeviceKind, GroupId, PlacementEntry, PoolConfig, Suits, Why};
use atoll_core::residency::{RESIDENCY_POLICY_DEFAULT, residency_policy_by_name};
use atoll_engine::{
    Class, DeviceId, FunctionKey, FunctionOptions, InputTensor, InvocationRequest, InvocationResult, InvokeError,
    LaneId,
};
use atoll_fleet::{DeviceTraits, Fleet, FleetHandle, Inference, SLOTS};
use atoll_kgraph::{BufferKind, Bundle};
use atoll_server::tensor_metadata;
use atoll_sim::cluster::arrivals::{Process, generate};
use atoll_sim::cluster::thesis::NO_STEAL;
use atoll_sim::cluster::{Arrival, Cluster, ClusterDevice, ClusterFunction, NodeModel, simulate_cluster};
use report::{Row, as_json, text};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench placement
  atoll bench placement --policy cost,balance,srtf --clients 6 --load 0.7 --seconds 20 --json
  atoll bench placement --device host:0@0-1 --device host:1@2-3 --sizes 64,256,512
  atoll bench placement --device cuda:0 --device cuda:1 --policy balance,exclusive --no-steal";

/// The function of the clients.
const FUNCTION: &str = "gemm_chain";
/// Calls of each function on each device, alone, from which its times are taken.
const CALLS: u32 = 20;
/// Longest wait for the answers to the last requests.
const TAIL: Duration = Duration::from_secs(60);
/// Time between the start of a run and its first arrival.
const LEAD: Duration = Duration::from_millis(20);
/// Requests of a run, so that it fits into memory.
const REQUESTS_MAX: f64 = 1e6;

/// Compare placement policies in simulation with the same policies in a real fleet
///
/// Each client has a function of its own, a chain of matrix products with its own constants. The
/// functions are first called alone on each device, which gives their times for the simulation. Then
/// each policy gets the same Poisson arrivals: in a new fleet on the devices, in an open loop, and
/// in the simulation. Errors are those of the simulation.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Policies [default: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,

    /// Devices, at least two; repeat the flag for each
    #[arg(long = "device", value_name = "DEVICE", default_values = ["host:0@0", "host:1@1"])]
    devices: Vec<DeviceSpec>,

    /// Number of compute units of each device [default: one per CPU of a host device; the whole GPU]
    #[arg(long, value_name = "COUNT")]
    compute_units: Option<NonZeroU32>,

    /// Clients
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,

    /// Rows and columns of the matrices, multiples of 64, for the clients in turn
    #[arg(long, value_delimiter = ',', default_value = "128,256")]
    sizes: Vec<u32>,

    /// Device time of all requests, as a part of the time of all devices
    #[arg(long, default_value_t = 0.5)]
    load: f64,

    /// Time in which requests arrive, for each policy
    #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,

    /// Seed of arrivals, inputs and random policies
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// `exclusive` never moves a device from one client to another
    #[arg(long)]
    no_steal: bool,
}

impl Args {
    /// The pool of a policy, the same in the fleet and in simulation.
    fn pool(&self, policy: &'static PlacementEntry) -> PoolConfig {
        let mut pool = PoolConfig::new(policy);
        pool.waiting_max = usize::MAX;
        pool.options.seed = self.seed;
        if self.no_steal {
            pool.options.steal = NO_STEAL;
        }
        pool
    }
}

/// A client with its function.
struct Client {
    key: FunctionKey,
    bundle: Arc<Bundle>,
    inputs: Vec<InputTensor>,
}

impl Client {
    fn request(&self) -> InvocationRequest {
        InvocationRequest {
            function: self.key.clone(),
            inputs: self.inputs.clone(),
            class: None,
            priority: 0,
            instance: None,
            deadline: None,
        }
    }
}

/// The times of a function alone on the devices, in nanoseconds, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    /// Device time of a request.
    service_ns: f64,
    /// Time from the request to its answer beyond the device time.
    overhead_ns: f64,
    /// Further time of the first request on a device, if it waits for constants.
    reload_ns: f64,
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let policies = policies(&args.policy).or_user_error()?;
    check(args).or_user_error()?;
    let folder = tempfile::tempdir()?;
    let clients = clients(args, folder.path())?;
    let first = args.pool(policies.first().context("there is a policy")?);
    let measured = |fleet: &FleetHandle| Ok((alone(fleet, &clients)?, fleet.traits()));
    let ((times, speeds), traits) = with_fleet(args, first, &clients, measured)?;
    let arrivals = arrivals(args, &times).or_user_error()?;
    let mut rows = Vec::new();
    for policy in policies {
        let pool = args.pool(policy);
        let real = with_fleet(args, pool, &clients, |fleet| drive(fleet, &clients, &arrivals))?;
        let simulated = simulate_cluster(&cluster(pool, &times, &traits, &speeds, &arrivals));
        rows.push(Row::of(policy.name, traits.len(), &real, &simulated, &times));
    }
    Findings::new(&as_json(args, &times, &rows), text(&clients, &times, &rows)?)
}

fn check(args: &Args) -> Result<()> {
    ensure!(args.devices.len() > 1, "a policy has no choice with one device; give --device twice");
    ensure!(args.load > 0.0 && args.load.is_finite(), "--load {}: the load is above 0", args.load);
    ensure!(!args.sizes.is_empty(), "--sizes has at least one value");
    Ok(())
}

fn scale(size: u32) -> Scale {
    Scale { size, width: 1.0, image: 64 }
}

/// Bundles and inputs of the clients.
fn clients(args: &Args, folder: &Path) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    let devices: Vec<DeviceName> = args.devices.iter().map(DeviceSpec::kind).collect();
    let folders: Vec<_> = args.sizes.iter().map(|size| folder.join(size.to_string())).collect();
    let variants = args.sizes.iter().zip(&folders);
    let variants = variants.map(|(&size, folder)| Variants::new(FUNCTION, scale(size), folder, &devices));
    let mut variants = variants.collect::<Result<Vec<_>>>()?;
    for client in 0..args.clients as usize {
        let (of_size, index) = (client % args.sizes.len(), client / args.sizes.len());
        let paths = variants[of_size].bundles(index + 1)?;
        let bundle = Bundle::open(&paths[index])?;
        let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
        let tensors = InputSpecs::default().tensors(&metadata, &mut Random::new(args.seed + client as u64))?;
        // A tenant for each, because policies that divide devices divide them among tenants.
        let tenant = format!("client{}", client + 1).parse().context("the name of a tenant")?;
        let key = FunctionKey { tenant, name: FUNCTION.into() };
        clients.push(Client { key, bundle, inputs: tensors.iter().map(invoker::input).collect() });
    }
    Ok(clients)
}

/// Runs `work` in a new fleet that has all functions.
fn with_fleet<T>(
    args: &Args,
    pool: PoolConfig,
    clients: &[Client],
    work: impl FnOnce(&FleetHandle) -> Result<T>,
) -> Result<T> {
    let fleet: Fleet = start_pool(&args.devices, args.compute_units, pool)?;
    let handle = fleet.handle();
    let load = |client: &Client| {
        let options = FunctionOptions {
            key: client.key.clone(),
            class: Class::BestEffort,
            // Large enough that no request is refused.
            queue_capacity: Some(REQUESTS_MAX as usize),
            lane: LaneId::DEFAULT,
            batching: None,
        };
        handle.load(client.bundle.clone(), options, None).with_context(|| format!("cannot load {}", client.key))
    };
    let done = clients.iter().try_for_each(|client| load(client).map(drop)).and_then(|()| work(&handle));
    fleet.shutdown();
    done
}

/// The fleet's answer to a request.
type Reply = Result<InvocationResult, InvokeError>;

/// Calls a function on a device and waits. Returns the result and the time until then.
fn call(fleet: &FleetHandle, client: &Client, device: DeviceId) -> Result<(InvocationResult, Duration)> {
    let (answer, answered) = mpsc::sync_channel(1);
    let begin = Instant::now();
    let reply = move |result: Reply| drop(answer.send((result, begin.elapsed())));
    fleet.submit_to(device, Why::Measured, client.request().into(), Box::new(reply));
    let (result, took) = answered.recv().context("the fleet does not answer")?;
    Ok((result.with_context(|| format!("cannot call {}", client.key))?, took))
}

fn device_ns(result: &InvocationResult) -> f64 {
    let timing = result.timing;
    (timing.input_ns + timing.compute_ns + timing.output_ns) as f64
}

/// The times of each client's function, called alone on each device, and the speed of each device.
fn alone(fleet: &FleetHandle, clients: &[Client]) -> Result<(Vec<Times>, Vec<f64>)> {
    let devices = fleet.devices().len();
    let (mut all, mut services) = (Vec::new(), Vec::new());
    for client in clients {
        let mut on_devices = Vec::with_capacity(devices);
        let mut times = Times::default();
        for device in (0..devices).map(|at| DeviceId(at as u16)) {
            let (first, first_took) = call(fleet, client, device)?;
            let (mut service, mut took) = (0.0, 0.0);
            for _ in 0..CALLS {
                let (result, waited) = call(fleet, client, device)?;
                service += device_ns(&result) / f64::from(CALLS);
                took += waited.as_nanos() as f64 / f64::from(CALLS);
            }
            on_devices.push(service);
            times.service_ns += service / devices as f64;
            times.overhead_ns += (took - service).max(0.0) / devices as f64;
            if first.cold_start {
                let reload = first_took.as_nanos() as f64 - device_ns(&first) - (took - service).max(0.0);
                times.reload_ns += reload.max(0.0) / devices as f64;
            }
        }
        all.push(times);
        services.push(on_devices);
    }
    Ok((all, speeds(&services, &fleet.traits())))
}

/// The speed of each device, from the service times of each function on each device: 1 means as fast
/// as the mean of the devices. Devices of a kind have the same speed.
fn speeds(services: &[Vec<f64>], traits: &[DeviceTraits]) -> Vec<f64> {
    let on_kind = |kind: &str, on_devices: &Vec<f64>| {
        let of_kind = traits.iter().zip(on_devices).filter(|(device, _)| device.kind == kind).map(|(_, ns)| *ns);
        mean(on_devices.iter().copied()) / mean(of_kind).max(1.0)
    };
    let speed = |device: &DeviceTraits| mean(services.iter().map(|on_devices| on_kind(&device.kind, on_devices)));
    traits.iter().map(speed).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count.max(1))
}

/// Poisson arrivals, at the same rate for each client.
fn arrivals(args: &Args, times: &[Times]) -> Result<Vec<Arrival>> {
    let work_s: f64 = times.iter().map(|times| times.service_ns / 1e9).sum();
    let rate = args.load * args.devices.len() as f64 / work_s.max(1e-9);
    let requests = rate * times.len() as f64 * args.seconds;
    ensure!(requests <= REQUESTS_MAX, "{requests:.0} requests are too many for a run; use a shorter --seconds");
    let arrivals = generate(&vec![Process::Poisson(rate); times.len()], args.seconds, args.seed);
    ensure!(!arrivals.is_empty(), "no request arrives in {} s; use a longer --seconds", args.seconds);
    Ok(arrivals)
}

/// The simulated cluster of the same devices and functions.
fn cluster(
    pool: PoolConfig,
    times: &[Times],
    traits: &[DeviceTraits],
    speeds: &[f64],
    arrivals: &[Arrival],
) -> Cluster {
    let kind = |device: &DeviceTraits| traits.iter().position(|other| other.kind == device.kind).unwrap_or(0);
    let device = |(device, speed): (&DeviceTraits, &f64)| ClusterDevice {
        kind: DeviceKind(kind(device) as u16),
        slots: SLOTS,
        memory_bytes: device.memory_bytes,
        speed: *speed,
    };
    let function = |(client, times): (usize, &Times)| ClusterFunction {
        name: format!("client{}", client + 1),
        group: GroupId(client as u32),
        class: Class::BestEffort,
        service_ns: times.service_ns as u64 + 1,
        reload_ns: times.reload_ns as u64,
        constant_bytes: 1,
        suits: Suits::All,
    };
    Cluster {
        pool,
        residency: residency_policy_by_name(RESIDENCY_POLICY_DEFAULT).expect("the default is in the table"),
        devices: traits.iter().zip(speeds).map(device).collect(),
        functions: times.iter().enumerate().map(function).collect(),
        arrivals: arrivals.to_vec(),
        faults: Vec::new(),
        // As in the fleet.
        times_known: false,
        step: None,
        node: NodeModel::Plain,
    }
}

/// An answered request of the fleet: the time from its arrival, and its device.
type Answered = (Duration, DeviceId);

/// Sends the requests in an open loop and waits for all answers.
fn drive(fleet: &FleetHandle, clients: &[Client], arrivals: &[Arrival]) -> Result<Vec<Answered>> {
    let (answer, answers) = mpsc::channel();
    let begin = Instant::now() + LEAD;
    for arrival in arrivals {
        // Times count from when a request was due, so that delays here are included.
        let due = begin + Duration::from_nanos(arrival.at_ns);
        let request = clients[arrival.function].request();
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let answer = answer.clone();
        // After a failure, answers are no longer received.
        let reply = move |result: Reply| drop(answer.send((due.elapsed(), result.map(|result| result.device))));
        fleet.submit(request.into(), Box::new(reply));
    }
    let mut answered = Vec::with_capacity(arrivals.len());
    for _ in arrivals {
        let (took, device) =
            answers.recv_timeout(TAIL).map_err(|_| anyhow!("no answer within {} s", TAIL.as_secs()))?;
        answered.push((took, device.map_err(|error| anyhow!("a request failed: {error}"))?));
    }
    Ok(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_kind_have_one_speed() {
        let device = |kind: &str| DeviceTraits { kind: kind.into(), is_cpu: false, memory_bytes: 1, capability: None };
        let traits = [device("cpu"), device("gpu"), device("gpu")];
        // Both functions take ten times as long on the CPU. The mean of the devices is 400 and 800.
        let services = [vec![1_000.0, 90.0, 110.0], vec![2_000.0, 200.0, 200.0]];
        assert_eq!(speeds(&services, &traits), [0.4, 4.0, 4.0]);
    }
}
