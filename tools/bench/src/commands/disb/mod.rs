//! `atoll bench disb`

mod plots;
mod real;
mod watch;

use crate::artifact;
use crate::device_name::DeviceName;
use crate::drawing::Gantt;
use crate::failure::{OrUserError, users};
use crate::invoker;
use crate::output::{Align, Table};
use crate::profiler;
use crate::random::Random;
use crate::report::Findings;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result, anyhow, bail, ensure};
use atoll_core::{Class, POLICIES, PaddingOptions, PolicyEntry, policy_by_name};
use atoll_engine::InputTensor;
use atoll_kgraph::{BufferKind, Bundle, Profile};
use atoll_server::tensor_metadata;
use atoll_sim::{
    COSTS, DEVICES, DISB, DeviceParameters, FAULTS, FaultCounts, Faults, Load, Model, Report, Simulation, Workload,
    device_by_name, simulate, watch,
};
use plots::Pictures;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of REEF's published files for the models of DISB.
pub(super) const REEF_FILES: [(&str, &str); 5] = [
    ("resnet152-imagenet", "resnet"),
    ("densenet201-imagenet", "densenet"),
    ("vgg19-imagenet", "vgg"),
    ("inceptionv3-imagenet", "inception"),
    ("distilbert", "bert"),
];

/// The policy that real-time latency and throughput are compared with.
const YARDSTICK: &str = "rt-only";

const EXAMPLES: &str = "\
On simulated GPUs (sim:mi50 and others), profiles are pairs of files as published by REEF: NAME.graph.json \
(the kernels in order) and NAME.profile.json (their times on the device). On host and cuda, models are \
executed; sim:host predicts that execution from the profiles of `atoll profile`. Both need --map for the \
models.

Examples:
  atoll bench disb --device sim:mi50 --profiles reef-mi50
  atoll bench disb --workload A,C --policy rt-only,streams,reset \\
      --device sim:mi50 --profiles reef-mi50
  atoll bench disb --workload REAL.json --device sim:mi50 --profiles reef-mi50 --json
  atoll bench disb --workload A --device sim:mi50 --profiles reef-mi50 --cost evicted-launch=2
  atoll bench disb --workload A --device sim:v100 --profiles reef-mi50 \\
      --fault stuck-kernels=0.0001,failing-resets=0.1
  atoll bench disb --workload A --device host --rate-scale 0.2 --duration 10 \\
      --map vgg19-imagenet=squeezenet.kg --map resnet152-imagenet=resnet18.kg
  atoll bench disb --workload A --device sim:host --rate-scale 0.2 --duration 10 \\
      --map vgg19-imagenet=squeezenet.kg --map resnet152-imagenet=resnet18.kg";

/// Run DISB's workloads under every policy. Calls arrive on schedule whether or not earlier ones
/// were answered, and latency counts from the scheduled arrival
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Workloads: letters of DISB v1.0, or files in its format
    #[arg(long, value_name = "LETTER|FILE", value_delimiter = ',', default_value = "A,B,C,D,E")]
    workload: Vec<String>,

    /// Policies to run [default: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,

    /// Device: host, cuda or cuda:N; or simulated: sim:mi50, sim:mi100, sim:v100, sim:a100,
    /// sim:h100 or sim:host
    #[arg(long, value_name = "DEVICE", default_value = "sim:mi50")]
    device: String,

    /// Folder with profiles of the models, in REEF's format
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,

    /// What to use for a model of the workload: a profile of the folder (the models of DISB have
    /// default names), or on host, cuda and sim:host a .kg or .onnx file
    #[arg(long, value_name = "MODEL=NAME|FILE")]
    map: Vec<String>,

    /// Compute units of host and sim:host [default: one per CPU]
    #[arg(long, value_name = "COUNT")]
    compute_units: Option<NonZeroU32>,

    /// Capacity of a device queue, in launches
    #[arg(
        long,
        value_name = "N",
        default_value_t = atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    capacity: u32,

    /// Factor for the arrival rates
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    rate_scale: f64,

    /// Duration of a run, in seconds [default: that of the workload]
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,

    /// Factor for one of the simulated device's costs, to see its effect
    #[arg(long, value_name = "COST=X")]
    cost: Vec<String>,

    /// Inject faults into a simulated device with this probability: late-completions, lost-wakeups,
    /// dead-clients, stuck-kernels, failing-resets
    #[arg(long, value_name = "FAULT=SHARE", value_delimiter = ',')]
    fault: Vec<String>,

    /// Let launches of a real-time call on a simulated device take this much longer together, in
    /// thousandths, so that longer best-effort blocks pad them
    #[arg(
        long,
        value_name = "PERMILLE",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    padding_delay: u32,

    /// Measure as DISB does: one outstanding call per client, calls that are due meanwhile are
    /// skipped, and latency counts from the actual start
    #[arg(long)]
    as_disb: bool,

    /// Seed of random arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// File for a plot of all latencies, or folder for latencies per client and timelines of
    /// compute units
    #[arg(long, value_name = "FILE.svg|DIR")]
    plot: Option<PathBuf>,

    /// Window of the timelines, in milliseconds [default: around the first real-time call that
    /// meets best-effort work]
    #[arg(long, value_name = "START..END", requires = "plot", value_parser = plots::window)]
    window: Option<Range<u64>>,
}

/// Settings of all runs.
#[derive(Clone, Copy)]
struct Settings {
    compute_units: u32,
    capacity: u32,
    faults: Faults,
    padding: PaddingOptions,
    seed: u64,
    as_disb: bool,
}

/// Where workloads run.
enum Place {
    Real(DeviceName, BTreeMap<String, Arc<Bundle>>),
    Simulated(DeviceParameters, BTreeMap<String, Model>),
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let workloads: Vec<Workload> =
        args.workload.iter().map(|name| workload(name, args)).collect::<Result<_>>().or_user_error()?;
    let policies = policies(&args.policy).or_user_error()?;
    let compute_units = args
        .compute_units
        .or_else(|| std::thread::available_parallelism().ok()?.try_into().ok())
        .map_or(1, NonZeroU32::get);
    let faults = faults(&args.fault).or_user_error()?;
    if !args.device.starts_with("sim:") && (faults != Faults::default() || args.padding_delay > 0) {
        return Err(users(anyhow!("--fault and --padding-delay apply to simulated devices only; use --device sim:…")));
    }
    let settings = Settings {
        compute_units,
        capacity: args.capacity,
        faults,
        padding: PaddingOptions { delay_permille: args.padding_delay, ..PaddingOptions::default() },
        seed: args.seed,
        as_disb: args.as_disb,
    };
    let place = place(args, &workloads, compute_units)?;
    let pictures = args.plot.as_deref().map(Pictures::new).transpose()?;
    let drawn = pictures.as_ref().filter(|pictures| pictures.has_timelines()).map(|_| args.window.clone());
    let mut reports = Vec::new();
    for workload in &workloads {
        for &policy in &policies {
            tracing::info!(workload = workload.name, policy = policy.name, "running");
            let (report, timeline) = place.run(workload, policy, &settings, drawn.as_ref())?;
            if let Some(pictures) = &pictures {
                pictures.timeline(&report, timeline)?;
            }
            reports.push(report);
        }
    }
    if let Some(pictures) = &pictures {
        pictures.latencies(&reports)?;
    }
    let struck = (!args.fault.is_empty()).then(|| struck(&reports).to_string());
    Findings::new(&reports, table(&reports).to_string() + &struck.unwrap_or_default())
}

impl Place {
    /// Runs a workload and draws its timeline if requested, in the given window or the default one.
    fn run(
        &self,
        workload: &Workload,
        policy: &'static PolicyEntry,
        settings: &Settings,
        drawn: Option<&Option<Range<u64>>>,
    ) -> Result<(Report, Option<Gantt>)> {
        match self {
            Place::Real(device, bundles) => real::run(*device, workload, policy, bundles, settings, drawn),
            Place::Simulated(device, models) => {
                let Settings { capacity: queue_capacity, faults, padding, seed, as_disb, .. } = *settings;
                let simulation = Simulation {
                    policy,
                    device: *device,
                    queue_capacity,
                    lanes: &[],
                    workload,
                    models,
                    padding,
                    faults,
                    seed,
                    as_disb,
                };
                let report = simulate(&simulation).or_user_error()?;
                let Some(window) = drawn else { return Ok((report, None)) };
                let (occupied, window) = watch(&simulation, window.clone(), plots::around).or_user_error()?;
                let gantt = plots::of_simulation(&occupied, &report, device.compute_units, &window);
                Ok((report, Some(gantt)))
            }
        }
    }
}

fn place(args: &Args, workloads: &[Workload], compute_units: u32) -> Result<Place> {
    let wanted: BTreeSet<&str> =
        workloads.iter().flat_map(|workload| &workload.clients).map(|client| client.model.as_str()).collect();
    if let Ok(device) = args.device.parse() {
        let is_dependent = |client: &&atoll_sim::Client| matches!(client.load, Load::After(_));
        if let Some(client) = workloads.iter().flat_map(|workload| &workload.clients).find(is_dependent) {
            let id = &client.id;
            return Err(users(anyhow!("client `{id}` has a dependent load, which runs on simulated devices only")));
        }
        return Ok(Place::Real(device, bundles(args, &wanted, device)?));
    }
    let mut device = device(args).or_user_error()?;
    if device.name == "host" {
        device.compute_units = compute_units;
        let profiled =
            |(name, bundle): (String, Arc<Bundle>)| Ok((name.clone(), host_profile(&name, &bundle, compute_units)?));
        return Ok(Place::Simulated(
            device,
            bundles(args, &wanted, DeviceName::Host)?.into_iter().map(profiled).collect::<Result<_>>()?,
        ));
    }
    Ok(Place::Simulated(device, models(args, &wanted, device.compute_units).or_user_error()?))
}

fn device(args: &Args) -> Result<DeviceParameters> {
    let known = || DEVICES.iter().map(|device| format!("sim:{}", device.name)).collect::<Vec<_>>().join(", ");
    let device = args.device.strip_prefix("sim:").and_then(device_by_name);
    let mut device = *device
        .with_context(|| format!("unknown device {}; the devices are host, cuda:N, {}", args.device, known()))?;
    for text in &args.cost {
        let (name, factor) = text.split_once('=').with_context(|| format!("--cost {text} is not COST=X"))?;
        let factor: f64 = factor.parse().with_context(|| format!("--cost {text}"))?;
        ensure!((0.0..=1000.0).contains(&factor), "--cost {text}: the factor must be between 0 and 1000");
        let names = || COSTS.iter().map(|cost| cost.name).collect::<Vec<_>>().join(", ");
        let cost = COSTS
            .iter()
            .find(|cost| cost.name == name)
            .with_context(|| format!("unknown cost {name}; the costs are {}", names()))?;
        let value = (cost.of)(&mut device.costs);
        *value = (*value as f64 * factor) as u64;
    }
    Ok(device)
}

/// Parses the fault probabilities.
fn faults(texts: &[String]) -> Result<Faults> {
    let mut faults = Faults::default();
    for text in texts {
        let (name, share) = text.split_once('=').with_context(|| format!("--fault {text} is not FAULT=SHARE"))?;
        let share: f64 = share.parse().with_context(|| format!("--fault {text}"))?;
        ensure!((0.0..=1.0).contains(&share), "--fault {text}: the probability must be between 0 and 1");
        let names = || FAULTS.iter().map(|fault| fault.name).collect::<Vec<_>>().join(", ");
        let fault = FAULTS
            .iter()
            .find(|fault| fault.name == name)
            .with_context(|| format!("unknown fault {name}; the faults are {}", names()))?;
        *(fault.of)(&mut faults) = share;
    }
    Ok(faults)
}

fn workload(name: &str, args: &Args) -> Result<Workload> {
    ensure!(
        args.rate_scale > 0.0 && args.rate_scale <= 1e3,
        "--rate-scale {} must be above 0 and at most 1000",
        args.rate_scale
    );
    let mut workload = match Workload::disb(name) {
        Some(workload) => workload,
        None if Path::new(name).extension().is_none() => {
            bail!("unknown workload {name}; use {}, or a file", DISB.join(", "))
        }
        None => Workload::read(Path::new(name))?,
    };
    if let Some(seconds) = args.duration {
        ensure!(seconds > 0.0 && seconds <= 86_400.0, "--duration {seconds} must be above 0 and at most 86400");
        workload.duration_ns = (seconds * 1e9) as u64;
    }
    Ok(workload.scaled(args.rate_scale))
}

fn policies(names: &[String]) -> Result<Vec<&'static PolicyEntry>> {
    if names.is_empty() {
        return Ok(POLICIES.iter().collect());
    }
    let known = || POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
    names
        .iter()
        .map(|name| {
            policy_by_name(name).with_context(|| format!("unknown policy {name}; the policies are {}", known()))
        })
        .collect()
}

/// Parses the --map flags.
fn mapped(args: &Args) -> Result<BTreeMap<&str, &str>> {
    args.map
        .iter()
        .map(|text| text.split_once('=').with_context(|| format!("--map {text} is not MODEL=NAME")))
        .collect()
}

/// The bundles of the models that the workloads name.
fn bundles(args: &Args, wanted: &BTreeSet<&str>, device: DeviceName) -> Result<BTreeMap<String, Arc<Bundle>>> {
    let files = mapped(args).or_user_error()?;
    let open = |model: &&str| {
        let file = files
            .get(model)
            .with_context(|| format!("no file for model {model}; choose one with --map {model}=FILE.kg"));
        Ok((model.to_string(), artifact::open(Path::new(file.or_user_error()?), device)?))
    };
    wanted.iter().map(open).collect()
}

/// The profile of a model for the smallest inputs, with which it is called.
pub(super) fn host_profile(name: &str, bundle: &Bundle, compute_units: u32) -> Result<Model> {
    let path = profiler::place(bundle, "host", compute_units).context("neither XDG_CACHE_HOME nor HOME is set")?;
    let advice = || format!("run `atoll profile {} --compute-units {compute_units}`", bundle.path().display());
    let profile =
        Profile::read(&path).with_context(|| format!("model {name} has no profile; {}", advice())).or_user_error()?;
    let tensors =
        InputSpecs::default().tensors(&tensor_metadata(bundle.graph(), BufferKind::Input), &mut Random::new(0))?;
    let inputs: Vec<InputTensor> = tensors.iter().map(invoker::input).collect();
    let symbols = profiler::symbols(bundle, &inputs)?;
    let shape = profile
        .shape(&symbols)
        .with_context(|| format!("the profile of model {name} has other shapes; {}", advice()))
        .or_user_error()?;
    Ok(Model::of_profile(name, shape, compute_units))
}

/// REEF's profiles of the models that the workloads name.
fn models(args: &Args, wanted: &BTreeSet<&str>, compute_units: u32) -> Result<BTreeMap<String, Model>> {
    let folder = args.profiles.as_ref().context("a simulated GPU needs profiles of the models; set --profiles DIR")?;
    let mut files: BTreeMap<&str, &str> = BTreeMap::from(REEF_FILES);
    files.extend(mapped(args)?);
    let read = |model: &&str| {
        let file = files.get(model).copied().unwrap_or(model);
        Ok((model.to_string(), read_reef(folder, model, file, compute_units, 0)?))
    };
    wanted.iter().map(read).collect()
}

/// A model from a pair of files in a folder, measured on a device with `compute_units` compute
/// units, with the memory bandwidth of its kernels if the device's is not 0.
///
/// # Errors
/// The files are missing or invalid: the user's mistake.
pub(super) fn read_reef(
    folder: &Path,
    model: &str,
    file: &str,
    compute_units: u32,
    bytes_per_us: u64,
) -> Result<Model> {
    let path = |kind: &str| folder.join(format!("{file}.{kind}.json"));
    let (graph, profile) = (path("graph"), path("profile"));
    let profile = Model::read_reef_with_bandwidth(&graph, &profile, model, compute_units, bytes_per_us);
    profile.with_context(|| format!("model {model}")).map_err(users)
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new([
        ("workload", Align::Left),
        ("policy", Align::Left),
        ("RT mean ms", Align::Right),
        ("over RT-only", Align::Right),
        ("RT p99 ms", Align::Right),
        ("RT/s", Align::Right),
        ("dropped", Align::Right),
        ("BE/s", Align::Right),
        ("all over RT-only", Align::Right),
        ("preempt p50 µs", Align::Right),
        ("p99", Align::Right),
        ("padded", Align::Right),
        ("in use", Align::Right),
    ]);
    for report in reports {
        let yardstick = reports.iter().find(|other| other.variant == report.variant && other.policy == YARDSTICK);
        let [rt, be] = [Class::RealTime, Class::BestEffort].map(|class| report.throughput(class));
        let mean = report.mean_latency_us(Class::RealTime);
        let real_time = || report.clients.iter().filter(|client| client.class == Class::RealTime);
        let p99 = real_time().map(|client| client.latency_us.p99).fold(0.0, f64::max);
        let slower =
            yardstick.map(|other| format!("{:+.1} %", 100.0 * (mean / other.mean_latency_us(Class::RealTime) - 1.0)));
        let more = yardstick.map(|other| format!("{:.2}", (rt + be) / other.throughput(Class::RealTime)));
        let preemption = |us: f64| if report.preemption.count == 0 { String::new() } else { format!("{us:.1}") };
        table.row([
            report.variant.clone(),
            report.policy.clone(),
            format!("{:.2}", mean / 1e3),
            slower.unwrap_or_default(),
            format!("{:.2}", p99 / 1e3),
            format!("{rt:.1}"),
            real_time().map(|client| client.dropped).sum::<u64>().to_string(),
            format!("{be:.1}"),
            more.unwrap_or_default(),
            preemption(report.preemption.total_us.p50),
            preemption(report.preemption.total_us.p99),
            if report.padded_launches == 0 { String::new() } else { report.padded_launches.to_string() },
            format!("{:.0} %", 100.0 * report.utilisation),
        ]);
    }
    table
}

/// The table of injected faults.
fn struck(reports: &[Report]) -> Table {
    let columns = FAULTS.map(|fault| (fault.name, Align::Right));
    let [late, wakeups, clients, kernels, resets] = columns;
    let mut table =
        Table::new([("workload", Align::Left), ("policy", Align::Left), late, wakeups, clients, kernels, resets]);
    for Report { variant, policy, faults, .. } in reports {
        let FaultCounts { late_completions, lost_wakeups, dead_clients, stuck_kernels, failing_resets } = *faults;
        let counts = [late_completions, lost_wakeups, dead_clients, stuck_kernels, failing_resets]
            .map(|count| count.to_string());
        let [late, wakeups, clients, kernels, resets] = counts;
        table.row([variant.clone(), policy.clone(), late, wakeups, clients, kernels, resets]);
    }
    table
}
