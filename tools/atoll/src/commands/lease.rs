//! `atoll lease`: instances that are granted for a limited time, for placement engines.

mod annotations;
mod hold;
mod holder;
mod rule;
mod scale;

use super::functions::ls::class_name;
use super::instance::parse_number;
use crate::control::{ClassName, Classify, ControlArgs};
use crate::output::{Align, Table, bytes, parse_bytes, print, print_json};
use anyhow::Result;
use atoll_client::{CapacityReport, DeviceCapacity, LEASE_TTL_S, LeaseHold, LeaseReport, LeaseSpec};
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll lease capacity
  atoll lease grant --request-id 7f3a --holder replica-1 --function resnet50 \\
      --sm-partition 30 --quota-request 0.4 --quota-limit 0.8 --gpu-mem 2G
  atoll lease renew 5 --epoch 6 --holder replica-1
  atoll lease ls --json
  atoll lease release 5 --epoch 6 --holder replica-1
  atoll lease hold --function resnet50 --quota-request 0.4 --gpu-mem 2G --lease-file lease.json

A lease ends unless it is renewed within its time to live, and with it its instance `lease-NUMBER`, which \
requests name. The answer to each command has the epoch for the next one. A command that is repeated with the \
same request id gets the same lease.";

/// Grant, renew and release leases of instances of functions; report the remaining capacity of
/// devices
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Grant(GrantArgs),
    /// Extend a lease by its time to live, from now
    Renew(HoldArgs),
    /// Give a lease to another holder, with a higher epoch; the old one can no longer renew it
    Takeover(HoldArgs),
    /// End a lease, and with it its instance
    Release(HoldArgs),
    Hold(hold::Args),
    /// Decide how many replicas of a function a load needs, and of which size: a filter for placement
    /// engines, which measure the load and start the replicas
    #[command(after_help = scale::EXAMPLES)]
    Scale,
    /// List leases
    Ls(ListArgs),
    /// Report the capacity of each device, and the part that is promised to leases
    Capacity(ListArgs),
}

/// Grant an instance of a function as a lease
#[derive(Debug, clap::Args)]
struct GrantArgs {
    /// Id of the request: chosen at random, and the same in all repetitions
    #[arg(long, value_name = "ID")]
    request_id: String,

    /// Name of the replica that holds the lease
    #[arg(long, value_name = "NAME")]
    holder: String,

    /// The function, as in resnet50 or TENANT:NAME
    #[arg(long, value_name = "FUNCTION")]
    function: String,

    /// Class of requests that name none [default: that of the function]
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Compute units of the device, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0, value_parser = parse_number)]
    sm_partition: f64,

    /// Fraction of the time that it gets whenever it has work
    #[arg(long, value_name = "FRACTION", value_parser = parse_number)]
    quota_request: f64,

    /// Fraction of the time that it gets at most
    #[arg(long, value_name = "FRACTION", default_value_t = 1.0, value_parser = parse_number)]
    quota_limit: f64,

    /// Device memory for its requests and its part of the function's constants, for example 2G
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    gpu_mem: u64,

    /// Real-time slots [default: 1 for the real-time class, 0 otherwise]
    #[arg(long, value_name = "NUMBER")]
    real_time_slots: Option<u32>,

    /// Time to live without renewal, in seconds: 5 to 600
    #[arg(long, value_name = "SECONDS", default_value_t = LEASE_TTL_S)]
    ttl: i64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, clap::Args)]
struct HoldArgs {
    /// The number of the lease
    #[arg(value_name = "LEASE")]
    lease: u64,

    /// Its epoch, from the last answer
    #[arg(long, value_name = "NUMBER")]
    epoch: u64,

    /// Its holder; for takeover, the new one
    #[arg(long, value_name = "NAME")]
    holder: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Grant(args) => {
            let (control, json) = (args.control.clone(), args.json);
            show(&control.connect()?.grant_lease(spec(args)).classify()?, json)
        }
        Command::Renew(args) => show(&args.control.connect()?.renew_lease(hold(&args)).classify()?, args.json),
        Command::Takeover(args) => show(&args.control.connect()?.take_over_lease(hold(&args)).classify()?, args.json),
        Command::Release(args) => {
            args.control.connect()?.release_lease(hold(&args)).classify()?;
            if args.json { print_json(&serde_json::json!({ "released": args.lease })) } else { Ok(()) }
        }
        Command::Hold(args) => hold::run(&args),
        Command::Scale => scale::run(),
        Command::Ls(ListArgs { json, control }) => {
            let leases = control.connect()?.leases().classify()?;
            if json { print_json(&leases) } else { Ok(print(&table(&leases))?) }
        }
        Command::Capacity(ListArgs { json, control }) => {
            let report = control.connect()?.capacity().classify()?;
            if json { print_json(&report) } else { Ok(print(&capacity(&report))?) }
        }
    }
}

fn spec(args: GrantArgs) -> LeaseSpec {
    LeaseSpec {
        request_id: args.request_id,
        holder: args.holder,
        function: args.function,
        class: args.class.map(Into::into),
        sm_partition: args.sm_partition,
        quota_request: args.quota_request,
        quota_limit: args.quota_limit,
        // More than the daemon's integer type holds is more than any device has.
        gpu_mem: i64::try_from(args.gpu_mem).unwrap_or(i64::MAX),
        real_time_slots: args.real_time_slots.map(i64::from),
        ttl_s: args.ttl,
    }
}

fn hold(args: &HoldArgs) -> LeaseHold {
    LeaseHold { lease: args.lease, epoch: args.epoch, holder: args.holder.clone() }
}

fn show(lease: &LeaseReport, json: bool) -> Result<()> {
    if json { print_json(lease) } else { Ok(print(&table(std::slice::from_ref(lease)))?) }
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

fn table(leases: &[LeaseReport]) -> String {
    let mut table = Table::new([
        ("lease", Align::Right),
        ("epoch", Align::Right),
        ("holder", Align::Left),
        ("function", Align::Left),
        ("instance", Align::Left),
        ("class", Align::Left),
        ("device", Align::Left),
        ("partition", Align::Right),
        ("request", Align::Right),
        ("limit", Align::Right),
        ("memory", Align::Right),
        ("slots", Align::Right),
        ("ends in", Align::Right),
    ]);
    for lease in leases {
        table.row([
            lease.lease.to_string(),
            lease.epoch.to_string(),
            lease.holder.clone(),
            lease.function.clone(),
            lease.instance.clone(),
            lease.class.map_or("-", class_name).into(),
            lease.device.clone(),
            percent(lease.sm_partition / 100.0),
            percent(lease.quota_request),
            percent(lease.quota_limit),
            bytes(lease.gpu_mem),
            lease.real_time_slots.to_string(),
            format!("{:.1} s", lease.expires_in_ms as f64 / 1e3),
        ]);
    }
    table.to_string()
}

fn capacity(report: &CapacityReport) -> String {
    let mut table = Table::new([
        ("device", Align::Left),
        ("units", Align::Right),
        ("promised", Align::Right),
        ("memory", Align::Right),
        ("promised", Align::Right),
        ("slots", Align::Right),
        ("promised", Align::Right),
        ("largest free", Align::Left),
    ]);
    for device in &report.devices {
        table.row([
            device.device.clone(),
            device.compute_units.to_string(),
            percent(device.promised_sm_pct / 100.0),
            bytes(device.memory_bytes),
            bytes(device.promised_memory_bytes),
            device.real_time_slots.to_string(),
            device.promised_real_time_slots.to_string(),
            largest(device),
        ]);
    }
    table.to_string()
}

/// The largest free rectangle of a device.
fn largest(device: &DeviceCapacity) -> String {
    let area = |free: &&atoll_client::FreeShare| free.sm_partition * free.quota;
    let largest = device.free.iter().max_by(|a, b| area(a).total_cmp(&area(b)));
    largest.map_or_else(
        || "nothing".into(),
        |free| format!("{} of the units for {} of the time", percent(free.sm_partition / 100.0), percent(free.quota)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_free_part_is_named() {
        let free = |sm_partition, quota| atoll_client::FreeShare { sm_partition, quota };
        let mut device = DeviceCapacity {
            device: "host:0".into(),
            state: atoll_client::DeviceCondition::Ready,
            compute_units: 4,
            promised_sm_pct: 12.0,
            free: vec![free(100.0, 0.2), free(70.0, 1.0), free(30.0, 0.6)],
            memory_bytes: 1 << 30,
            promised_memory_bytes: 0,
            real_time_slots: 4,
            promised_real_time_slots: 1,
        };
        assert_eq!(largest(&device), "70.0 % of the units for 100.0 % of the time");
        let text = capacity(&CapacityReport { leases: 1, devices: vec![device.clone()] });
        assert!(text.contains("host:0") && text.contains("12.0 %"), "{text}");
        device.free.clear();
        assert_eq!(largest(&device), "nothing");
    }
}
