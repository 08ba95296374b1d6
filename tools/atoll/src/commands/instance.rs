//! `atoll instance`: instances of functions, with shares of the device.

mod map;

use super::functions::ls::class_name;
use crate::control::{ClassName, Classify, ControlArgs};
use crate::failure::{OrUserError, user_error};
use crate::output::{Align, Table, bytes, parse_bytes, print, print_json};
use anyhow::{Context, Result};
use atoll_client::{InstanceReport, InstanceResize, InstanceSpec, ShareEntry};
use clap::Subcommand;
use serde::Deserialize;
use std::io::Read;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  atoll instance create fast --function resnet50 --quota-request 0.6 --quota-limit 0.8
  atoll instance create --file slow.toml
  atoll instance resize fast --quota-request 0.7
  atoll instance ls --json
  atoll instance map --svg map.svg
  atoll instance rm fast

A request names an instance by its parameter `instance`. The manifest has the names of FaSTPod:
  name = \"slow\", function = \"resnet50\", sm_partition = 24, quota_request = 0.2, quota_limit = 0.4,
  gpu_mem = \"2G\", latency_ms = 69";

/// Largest manifest: its few fields take a few hundred bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// Create, resize, remove and list instances of functions: shares of the device under which their
/// requests run
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(CreateArgs),
    Resize(ResizeArgs),
    Rm(RmArgs),
    Ls(ListArgs),
    Map(map::Args),
}

/// Create an instance of a function
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name, unique per tenant
    #[arg(required_unless_present = "file")]
    name: Option<String>,

    /// The function, as in resnet50 or TENANT:NAME
    #[arg(long, value_name = "FUNCTION", required_unless_present = "file")]
    function: Option<String>,

    /// Class of requests that name none [default: that of the function]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    #[command(flatten)]
    figures: Figures,

    /// Manifest (TOML or JSON) with these fields; flags override them
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Change an instance; its requests continue. Figures that are not given stay as they are
#[derive(Debug, clap::Args)]
struct ResizeArgs {
    /// The instance, as in NAME or TENANT:NAME
    #[arg(value_name = "INSTANCE")]
    instance: String,

    #[command(flatten)]
    figures: Figures,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Remove an instance; its requests end with an error
#[derive(Debug, clap::Args)]
struct RmArgs {
    /// The instance, as in NAME or TENANT:NAME
    #[arg(value_name = "INSTANCE")]
    instance: String,

    #[command(flatten)]
    control: ControlArgs,
}

/// List instances and shares of tenants, with what they received
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Default, PartialEq, clap::Args)]
struct Figures {
    /// Compute units of the device that it is bound to, in percent: above 0, at most 100. Rounded
    /// up to the device's groups of units [default of a new instance: 100]
    #[arg(long, value_name = "PERCENT", value_parser = parse_number)]
    sm_partition: Option<f64>,

    /// Fraction of the time that it gets whenever it has work: above 0, at most 1
    #[arg(long, value_name = "FRACTION", value_parser = parse_number)]
    quota_request: Option<f64>,

    /// Fraction of the time that it gets at most [default of a new instance: 1]
    #[arg(long, value_name = "FRACTION", value_parser = parse_number)]
    quota_limit: Option<f64>,

    /// Device memory for its requests and its part of the function's constants, for example 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    gpu_mem: Option<u64>,

    /// Target latency of its requests in milliseconds; those that take longer are counted
    #[arg(long, value_name = "MS")]
    latency_ms: Option<u64>,
}

/// A manifest. Numbers may be texts, as the annotations of a FaSTPod are.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    name: Option<String>,
    function: Option<String>,
    class: Option<atoll_client::Class>,
    sm_partition: Option<Number>,
    quota_request: Option<Number>,
    quota_limit: Option<Number>,
    gpu_mem: Option<Number>,
    latency_ms: Option<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(f64),
    Text(String),
}

impl Number {
    fn value(&self, field: &str) -> Result<f64> {
        let value = match self {
            Number::Number(number) => parse_number(&number.to_string()),
            Number::Text(text) => parse_number(text),
        };
        value.map_err(|error| user_error(format!("{field}: {error}")))
    }

    /// Whole milliseconds.
    fn milliseconds(&self, field: &str) -> Result<u64> {
        let text = match self {
            Number::Number(number) => number.to_string(),
            Number::Text(text) => text.trim().to_owned(),
        };
        text.parse().map_err(|_| user_error(format!("{field}: `{text}` is not a whole number of milliseconds")))
    }

    fn bytes(&self, field: &str) -> Result<u64> {
        let text = match self {
            Number::Number(number) => number.to_string(),
            Number::Text(text) => text.clone(),
        };
        parse_bytes(&text).map_err(|error| user_error(format!("{field}: {error}")))
    }
}

/// A finite number. The daemon checks its range.
pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    let number: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    if number.is_finite() { Ok(number) } else { Err(format!("`{text}` is not a finite number")) }
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Create(args) => {
            let manifest = args.file.as_deref().map(read).transpose()?.unwrap_or_default();
            let (control, json) = (args.control.clone(), args.json);
            let spec = spec(args, &manifest)?;
            show(&control.connect()?.create_instance(spec).classify()?, json)
        }
        Command::Resize(ResizeArgs { instance, figures, json, control }) => {
            if figures == Figures::default() {
                return Err(user_error("nothing to change; give --quota-request, --quota-limit or another figure"));
            }
            let Figures { sm_partition, quota_request, quota_limit, gpu_mem, latency_ms } = figures;
            let resize = InstanceResize { instance, sm_partition, quota_request, quota_limit, gpu_mem, latency_ms };
            show(&control.connect()?.resize_instance(resize).classify()?, json)
        }
        Command::Rm(RmArgs { instance, control }) => control.connect()?.remove_instance(&instance).classify(),
        Command::Ls(ListArgs { json, control }) => {
            let instances = control.connect()?.instances().classify()?;
            if json { print_json(&instances) } else { Ok(print(&text(&instances))?) }
        }
        Command::Map(args) => map::run(&args),
    }
}

fn read(path: &Path) -> Result<Manifest> {
    let failed = || format!("{}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(failed).or_user_error()?;
    file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text).with_context(failed).or_user_error()?;
    match path.extension().is_some_and(|extension| extension == "json") {
        true => serde_json::from_str(&text).with_context(failed).or_user_error(),
        false => toml::from_str(&text).with_context(failed).or_user_error(),
    }
}

/// The instance of flags and a manifest.
fn spec(args: CreateArgs, manifest: &Manifest) -> Result<InstanceSpec> {
    let needed = |what: &str| user_error(format!("the instance has no {what}; state it by a flag or in the manifest"));
    let number = |flag: Option<f64>, field: &Option<Number>, name: &str| match (flag, field) {
        (Some(flag), _) => Ok(Some(flag)),
        (None, field) => field.as_ref().map(|field| field.value(name)).transpose(),
    };
    let Figures { sm_partition, quota_request, quota_limit, gpu_mem, latency_ms } = args.figures;
    let memory = || manifest.gpu_mem.as_ref().map(|field| field.bytes("gpu_mem")).transpose();
    let target = || manifest.latency_ms.as_ref().map(|field| field.milliseconds("latency_ms")).transpose();
    Ok(InstanceSpec {
        name: args.name.or(manifest.name.clone()).ok_or_else(|| needed("name"))?,
        function: args.function.or(manifest.function.clone()).ok_or_else(|| needed("function"))?,
        class: args.class.map(Into::into).or(manifest.class),
        sm_partition: number(sm_partition, &manifest.sm_partition, "sm_partition")?.unwrap_or(100.0),
        quota_request: number(quota_request, &manifest.quota_request, "quota_request")?
            .ok_or_else(|| needed("quota_request"))?,
        quota_limit: number(quota_limit, &manifest.quota_limit, "quota_limit")?.unwrap_or(1.0),
        gpu_mem: gpu_mem.map_or_else(memory, |bytes| Ok(Some(bytes)))?,
        latency_ms: latency_ms.map_or_else(target, |ms| Ok(Some(ms)))?,
    })
}

fn show(instance: &InstanceReport, json: bool) -> Result<()> {
    if json { print_json(instance) } else { Ok(print(&text(std::slice::from_ref(instance)))?) }
}

/// The table of instances, and a line for each instance whose share is not set or not bound, or
/// that missed its target latency.
fn text(instances: &[InstanceReport]) -> String {
    let mut text = table(instances);
    for report in instances {
        let name = name(report);
        if let Some(reason) = &report.refused {
            text += &format!("{name} is set on no device, and requests that name it are refused: {reason}\n");
        }
        for entry in &report.devices {
            text += &of_device(&name, report.sm_partition / 100.0, entry);
        }
        let InstanceReport { late, ended, .. } = report;
        // The target is that of 99 of 100 requests.
        if let Some(target) = report.latency_ms.filter(|_| *ended >= 100 && late.saturating_mul(100) > *ended) {
            text += &format!("{late} of {ended} requests of {name} took longer than its target of {target} ms\n");
        }
        if let Some(reason) = &report.autoscaled {
            let goes = if report.draining { " and is removed when its requests have ended" } else { "" };
            text += &format!("{name} is the autoscaler's{goes}: {reason}\n");
        }
    }
    text
}

/// A line that says why a client is not bound to compute units of a device, or that it has more of
/// them than it asked for.
fn of_device(name: &str, asked: f64, entry: &ShareEntry) -> String {
    let ShareEntry { device, unbound, granted, .. } = entry;
    match unbound {
        Some(reason) => format!("{name} is not bound to compute units of {device}: {reason}\n"),
        // Partitions are rounded to a millionth.
        None if *granted > asked + 1e-6 => format!(
            "{name} asked for {:.1} % of the compute units of {device} and has {:.1} %: the device assigns whole units \
             or groups of units\n",
            asked * 100.0,
            granted * 100.0
        ),
        None => String::new(),
    }
}

fn name(report: &InstanceReport) -> String {
    report.instance.clone().unwrap_or_else(|| format!("tenant {}", report.tenant))
}

/// The compute units that a client has on a device.
fn units(entry: &ShareEntry) -> String {
    match entry.area.filter(|_| entry.unbound.is_none()) {
        Some(area) if area.units == 1 => format!("{} of {}", area.first_unit, entry.compute_units),
        Some(area) if area.units < entry.compute_units => {
            format!("{}-{} of {}", area.first_unit, area.first_unit + area.units - 1, entry.compute_units)
        }
        _ => format!("any of {}", entry.compute_units),
    }
}

fn table(instances: &[InstanceReport]) -> String {
    let mut table = Table::new([
        ("instance", Align::Left),
        ("function", Align::Left),
        ("class", Align::Left),
        ("partition", Align::Right),
        ("request", Align::Right),
        ("limit", Align::Right),
        ("memory", Align::Right),
        ("device", Align::Left),
        ("units", Align::Left),
        ("received", Align::Right),
        ("largest error", Align::Right),
    ]);
    let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
    for report in instances {
        let of_promise = [
            name(report),
            report.function.clone().unwrap_or_else(|| "-".into()),
            report.class.map_or("-", class_name).into(),
            percent(report.sm_partition / 100.0),
            percent(report.quota_request),
            percent(report.quota_limit),
            report.gpu_mem.map_or_else(|| "-".into(), bytes),
        ];
        let mut row = |device: [String; 4]| {
            let cells: Vec<String> = of_promise.iter().cloned().chain(device).collect();
            table.row::<11>(cells.try_into().expect("seven and four cells"));
        };
        if report.devices.is_empty() {
            row(["-".into(), "-".into(), "-".into(), "-".into()]);
        }
        for entry in &report.devices {
            row([entry.device.clone(), units(entry), percent(entry.received), percent(entry.error_max)]);
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(toml: &str) -> Manifest {
        toml::from_str(toml).unwrap()
    }

    fn args(file: bool) -> CreateArgs {
        CreateArgs {
            name: None,
            function: None,
            class: None,
            figures: Figures::default(),
            file: file.then(|| "slow.toml".into()),
            json: false,
            control: ControlArgs::default(),
        }
    }

    #[test]
    fn a_manifest_has_the_names_of_faas_pods_as_numbers_or_texts() {
        let text = "name = \"slow\"\nfunction = \"f\"\nsm_partition = \"24\"\nquota_request = 0.4\n\
                    quota_limit = \"0.8\"\n\
                    gpu_mem = \"2G\"\nlatency_ms = \"69\"\nclass = \"best-effort\"";
        let found = spec(args(true), &manifest(text)).unwrap();
        assert_eq!((found.sm_partition, found.quota_request, found.quota_limit), (24.0, 0.4, 0.8));
        assert_eq!((found.gpu_mem, found.name.as_str(), found.function.as_str()), (Some(2 << 30), "slow", "f"));
        assert_eq!(found.latency_ms, Some(69));
        let flags = CreateArgs { figures: Figures { quota_limit: Some(0.9), ..Figures::default() }, ..args(true) };
        assert_eq!(spec(flags, &manifest(text)).unwrap().quota_limit, 0.9, "flags take the place of fields");
    }

    #[test]
    fn instances_that_lack_something_say_why() {
        let area = atoll_client::ShareArea { first_unit: 2, units: 3, time_from: 0.0, time: 0.5 };
        let granted = 0.375;
        let bound = ShareEntry {
            device: "host:0".into(),
            compute_units: 8,
            granted,
            area: Some(area),
            ..ShareEntry::default()
        };
        assert_eq!(units(&bound), "2-4 of 8");
        let one = atoll_client::ShareArea { units: 1, ..area };
        assert_eq!(units(&ShareEntry { area: Some(one), ..bound.clone() }), "2 of 8");
        let unbound = ShareEntry { area: None, unbound: Some("it is full".into()), ..bound.clone() };
        assert_eq!(units(&unbound), "any of 8");
        let report = InstanceReport {
            instance: Some("slow".into()),
            tenant: atoll_client::Tenant::default(),
            function: Some("f".into()),
            class: None,
            sm_partition: 24.0,
            quota_request: 0.5,
            quota_limit: 1.0,
            gpu_mem: None,
            latency_ms: Some(69),
            devices: vec![bound, unbound],
            requests: 0,
            ended: 700,
            late: 8,
            service_ms: None,
            throughput: None,
            refused: Some("host:1: it has no room".into()),
            device: None,
            autoscaled: Some("the load exceeded the capacity".into()),
            draining: true,
        };
        let text = text(&[report]);
        assert!(text.contains("2-4 of 8") && text.contains("any of 8"), "{text}");
        assert!(
            text.ends_with(
                "slow is set on no device, and requests that name it are refused: host:1: it has no room\n\
                 slow asked for 24.0 % of the compute units of host:0 and has 37.5 %: the device assigns whole units \
                 or groups of units\n\
                 slow is not bound to compute units of host:0: it is full\n\
                 8 of 700 requests of slow took longer than its target of 69 ms\n\
                 slow is the autoscaler's and is removed when its requests have ended: the load exceeded the capacity\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn what_is_missing_or_no_number_is_named() {
        let why = |text: &str| spec(args(true), &manifest(text)).unwrap_err().to_string();
        assert!(why("function = \"f\"").contains("the instance has no name"));
        assert!(why("name = \"a\"\nfunction = \"f\"").contains("no quota_request"));
        assert!(why("name = \"a\"\nfunction = \"f\"\nquota_request = nan").contains("quota_request: `NaN`"));
        assert!(why("name = \"a\"\nfunction = \"f\"\nquota_request = \"x\"").contains("`x` is not a number"));
        let target = "name = \"a\"\nfunction = \"f\"\nquota_request = 0.1\nlatency_ms = 0.5";
        assert!(why(target).contains("latency_ms: `0.5` is not a whole number of milliseconds"));
        assert!(toml::from_str::<Manifest>("quota = 1").is_err());
    }
}
