//! `atoll bench disb`

use crate::failure::{Blame, users};
use crate::output::{Align, Table, print, print_json};
use anyhow::{Context, Result, bail, ensure};
use atoll_core::{Class, POLICIES, PolicyEntry, policy_by_name};
use atoll_sim::{COSTS, DEVICES, DISB, DeviceParameters, Model, Report, Simulation, Workload, device_by_name, simulate};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How REEF's published files are called that hold the models of DISB.
const REEF_FILES: [(&str, &str); 5] = [
    ("resnet152-imagenet", "resnet"),
    ("densenet201-imagenet", "densenet"),
    ("vgg19-imagenet", "vgg"),
    ("inceptionv3-imagenet", "inception"),
    ("distilbert", "bert"),
];

/// What real-time latency and throughput are compared with.
const YARDSTICK: &str = "rt-only";

const EXAMPLES: &str = "\
Profiles are pairs of files as REEF published them: NAME.graph.json, the kernels in their order, and NAME.profile.json, their times on the device.

Examples:
  atoll bench disb --device sim:mi50 --profiles reef-mi50
  atoll bench disb --workload A,C --policy rt-only,streams,reset --device sim:mi50 --profiles reef-mi50
  atoll bench disb --workload REAL.json --device sim:mi50 --profiles reef-mi50 --json
  atoll bench disb --workload A --device sim:mi50 --profiles reef-mi50 --cost evicted-launch=2";

/// Run DISB's workloads under every policy: calls arrive on time whether or not others were answered, and latency counts from the scheduled arrival.
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Workloads: letters of DISB v1.0, or files of its format
    #[arg(long, value_name = "LETTER|FILE", value_delimiter = ',', default_value = "A,B,C,D,E")]
    workload: Vec<String>,

    /// Policies [default: all]
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<String>,

    /// The device, in virtual time: sim:mi50, sim:v100, sim:a100 or sim:h100
    #[arg(long, value_name = "DEVICE", default_value = "sim:mi50")]
    device: String,

    /// Folder with the profiles of models
    #[arg(long, value_name = "DIR")]
    profiles: PathBuf,

    /// The profile of a model that the workload names; those of DISB are known by the names of REEF's files
    #[arg(long, value_name = "MODEL=NAME")]
    map: Vec<String>,

    /// Launches that a device queue holds
    #[arg(long, value_name = "N", default_value_t = atoll_core::limits::DEVICE_QUEUE_CAPACITY_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=1024))]
    capacity: u32,

    /// Multiply the rates of arrival
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    rate_scale: f64,

    /// End after so many seconds [default: as the workload says]
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,

    /// Multiply one of the costs of the device, to see what it matters
    #[arg(long, value_name = "COST=X")]
    cost: Vec<String>,

    /// Measure as DISB does: one call at a time per client, what is due meanwhile skipped, latency from the actual beginning
    #[arg(long)]
    as_disb: bool,

    /// Seed of random arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON, with every client's distribution and the parts of preemptions
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let device = device(args).blame_user()?;
    let workloads: Vec<Workload> = args.workload.iter().map(|name| workload(name, args)).collect::<Result<_>>().blame_user()?;
    let policies = policies(&args.policy).blame_user()?;
    let models = models(args, &workloads, device.compute_units).blame_user()?;
    let mut reports = Vec::new();
    for workload in &workloads {
        for &policy in &policies {
            let (queue_capacity, seed, as_disb) = (args.capacity, args.seed, args.as_disb);
            let simulation = Simulation { policy, device, queue_capacity, workload, models: &models, seed, as_disb };
            reports.push(simulate(&simulation).blame_user()?);
        }
    }
    if args.json { print_json(&reports) } else { Ok(print(&table(&reports).to_string())?) }
}

fn device(args: &Args) -> Result<DeviceParameters> {
    let known = || DEVICES.iter().map(|device| format!("sim:{}", device.name)).collect::<Vec<_>>().join(", ");
    let device = args.device.strip_prefix("sim:").and_then(device_by_name);
    let mut device = *device.with_context(|| format!("there is no device {} to simulate; there are {}", args.device, known()))?;
    for text in &args.cost {
        let (name, factor) = text.split_once('=').with_context(|| format!("--cost {text} is not COST=X"))?;
        let factor: f64 = factor.parse().with_context(|| format!("--cost {text}"))?;
        ensure!((0.0..=1000.0).contains(&factor), "--cost {text}: between 0 and 1000 times is possible");
        let names = || COSTS.iter().map(|cost| cost.name).collect::<Vec<_>>().join(", ");
        let cost =
            COSTS.iter().find(|cost| cost.name == name).with_context(|| format!("there is no cost {name}; there are {}", names()))?;
        let value = (cost.of)(&mut device.costs);
        *value = (*value as f64 * factor) as u64;
    }
    Ok(device)
}

fn workload(name: &str, args: &Args) -> Result<Workload> {
    ensure!(args.rate_scale > 0.0 && args.rate_scale <= 1e3, "--rate-scale {} is not above 0 and up to 1000", args.rate_scale);
    let mut workload = match Workload::disb(name) {
        Some(workload) => workload,
        None if Path::new(name).extension().is_none() => bail!("there is no workload {name}; there are {}, and files", DISB.join(", ")),
        None => Workload::read(Path::new(name))?,
    };
    if let Some(seconds) = args.duration {
        ensure!(seconds > 0.0 && seconds <= 86_400.0, "--duration {seconds} is not above 0 and up to a day");
        workload.duration_ns = (seconds * 1e9) as u64;
    }
    Ok(workload.scaled(args.rate_scale))
}

fn policies(names: &[String]) -> Result<Vec<&'static PolicyEntry>> {
    if names.is_empty() {
        return Ok(POLICIES.iter().collect());
    }
    let known = || POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
    names.iter().map(|name| policy_by_name(name).with_context(|| format!("there is no policy {name}; there are {}", known()))).collect()
}

/// The profiles of all models that the workloads name.
fn models(args: &Args, workloads: &[Workload], compute_units: u32) -> Result<BTreeMap<String, Model>> {
    let mut files: BTreeMap<&str, &str> = BTreeMap::from(REEF_FILES);
    for text in &args.map {
        let (model, name) = text.split_once('=').with_context(|| format!("--map {text} is not MODEL=NAME"))?;
        files.insert(model, name);
    }
    let wanted: BTreeSet<&str> = workloads.iter().flat_map(|workload| &workload.clients).map(|client| client.model.as_str()).collect();
    let read = |model: &str| {
        let name = files.get(model).copied().unwrap_or(model);
        let path = |kind: &str| args.profiles.join(format!("{name}.{kind}.json"));
        let profile = Model::read_reef(&path("graph"), &path("profile"), model, compute_units);
        Ok((model.to_owned(), profile.with_context(|| format!("model {model}")).map_err(users)?))
    };
    wanted.into_iter().map(read).collect()
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
        let slower = yardstick.map(|other| format!("{:+.1} %", 100.0 * (mean / other.mean_latency_us(Class::RealTime) - 1.0)));
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
