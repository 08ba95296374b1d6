//! `atoll ps`

use super::functions::ls::class_name;
use crate::control::{Classify, ControlArgs};
use crate::output::{Align, Table, bytes, counted, print, print_json};
use anyhow::Result;
use atoll_client::{DeviceEntry, ExecutorEntry, ProcessEntry, ProcessReport, Residency, ShareEntry};

const EXAMPLES: &str = "\
Examples:
  atoll ps
  atoll ps --tenant team-a --json

Root and the daemon's own user see all tenants, unless they choose one with --tenant.";

/// List loaded functions with the location of their constants and their invocations, and the
/// executor processes
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let report = args.control.connect()?.processes().classify()?;
    if args.json {
        return print_json(&report);
    }
    Ok(print(&render(&report))?)
}

fn render(report: &ProcessReport) -> String {
    let mut table = Table::new([
        ("device", Align::Left),
        ("tenant", Align::Left),
        ("function", Align::Left),
        ("class", Align::Left),
        ("constants", Align::Left),
        ("on device", Align::Right),
        ("in host memory", Align::Right),
        ("invocations", Align::Right),
        ("running", Align::Right),
        ("waiting", Align::Right),
    ]);
    report.functions.iter().for_each(|function| table.row(cells(function)));
    // A single device needs no column.
    let is_alone = report.devices.len() <= 1;
    if is_alone {
        table.hide(0);
    }
    let devices: String = report.devices.iter().map(headline).collect();
    format!("{devices}{table}{}{}", shares(&report.shares, is_alone), executors(&report.executors, is_alone))
}

/// Instances and tenants with shares; empty if there are none.
fn shares(shares: &[ShareEntry], is_alone: bool) -> String {
    if shares.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        ("device", Align::Left),
        ("tenant", Align::Left),
        ("instance", Align::Left),
        ("promised", Align::Right),
        ("received", Align::Right),
        ("largest error", Align::Right),
    ]);
    let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
    for entry in shares {
        table.row([
            entry.device.clone(),
            entry.tenant.to_string(),
            entry.instance.clone().unwrap_or_else(|| "-".into()),
            percent(entry.promised),
            percent(entry.received),
            percent(entry.error_max),
        ]);
    }
    if is_alone {
        table.hide(0);
    }
    format!("\n{table}")
}

fn headline(entry: &DeviceEntry) -> String {
    let DeviceEntry { device, compute_units, memory_bytes, memory_used_bytes, unready, lost } = entry;
    let state = match lost {
        Some(reason) => format!(", lost: {reason}"),
        None if *unready => ", being replaced".into(),
        None => String::new(),
    };
    let memory = format!("{} of {}", bytes(*memory_used_bytes), bytes(*memory_bytes));
    format!("{device}, {}, {memory} in use{state}\n", counted(*compute_units, "compute unit"))
}

/// The executor processes of tenants; empty if the daemon runs kernels itself.
fn executors(executors: &[ExecutorEntry], is_alone: bool) -> String {
    if executors.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        ("device", Align::Left),
        ("tenant", Align::Left),
        ("executor", Align::Right),
        ("restarts", Align::Right),
        ("CPU", Align::Right),
        ("memory limit", Align::Right),
        ("trouble", Align::Left),
    ]);
    for entry in executors {
        let ExecutorEntry { device, tenant, pid, restarts, cpu_s, memory_limit_bytes, cause, jail_lacks } = entry;
        let lacks = (!jail_lacks.is_empty()).then(|| format!("its jail lacks {}", jail_lacks.join(", ")));
        let trouble = cause.clone().or(lacks).unwrap_or_default();
        let pid = pid.map_or_else(|| "-".into(), |pid| pid.to_string());
        let limit = memory_limit_bytes.map_or_else(|| "-".into(), bytes);
        let cpu = format!("{cpu_s:.1} s");
        table.row([device.clone(), tenant.to_string(), pid, restarts.to_string(), cpu, limit, trouble]);
    }
    // Where no control groups can be made, there is nothing to show.
    if executors.iter().all(|entry| entry.memory_limit_bytes.is_none()) {
        table.hide(5);
    }
    if is_alone {
        table.hide(0);
    }
    format!("\n{table}")
}

fn cells(function: &ProcessEntry) -> [String; 10] {
    let residency = match function.residency {
        Residency::Device => "device",
        Residency::Loading => "loading",
        Residency::Host => "host",
    };
    [
        function.device.clone(),
        function.tenant.to_string(),
        function.function.clone(),
        class_name(function.class).into(),
        residency.into(),
        format!("{} of {}", bytes(function.constant_device_bytes), bytes(function.constant_bytes)),
        bytes(function.constant_host_bytes),
        bytes(function.invocation_bytes),
        function.running.to_string(),
        function.waiting.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_client::Class;

    #[test]
    fn a_report_is_a_table_with_units() {
        let function = ProcessEntry {
            device: "host:0".into(),
            tenant: "a".parse().unwrap(),
            function: "f".into(),
            class: Class::RealTime,
            residency: Residency::Host,
            constant_bytes: 2048,
            constant_device_bytes: 1024,
            constant_host_bytes: 512,
            invocation_bytes: 1 << 20,
            running: 1,
            waiting: 3,
        };
        let mut report = ProcessReport {
            device: "host:0".into(),
            compute_units: 4,
            memory_bytes: 1 << 30,
            memory_used_bytes: 3 << 20,
            lost: None,
            functions: vec![function],
            executors: vec![],
            shares: vec![],
            devices: vec![],
        }
        .complete();
        assert_eq!(
            render(&report),
            "host:0, 4 compute units, 3.0 MiB of 1.0 GiB in use\n  \
             tenant  function  class      constants           on device  in host memory  invocations  running  \
             waiting\n  \
             a       f         real-time  host       1.0 KiB of 2.0 KiB           512 B      1.0 MiB        1        \
             3\n"
        );
        let share = ShareEntry {
            device: "host:0".into(),
            tenant: "a".parse().unwrap(),
            instance: Some("fast".into()),
            promised: 0.6,
            received: 0.594,
            error_max: 0.01,
            p99_overshoot_us: 80.0,
            received_s: 1.5,
            tokens: 7,
            recalls: 5,
            ..ShareEntry::default()
        };
        assert_eq!(
            shares(&[share], true),
            "\n  tenant  instance  promised  received  largest error\n  \
             a       fast        60.0 %    59.4 %          1.0 %\n"
        );
        let entry = |pid, cause: Option<&str>| ExecutorEntry {
            device: "host:1".into(),
            tenant: "a".parse().unwrap(),
            pid,
            restarts: 2,
            cpu_s: 12.34,
            memory_limit_bytes: None,
            cause: cause.map(Into::into),
            jail_lacks: vec!["landlock: none".into()],
        };
        assert_eq!(
            executors(&[entry(Some(1234), None), entry(None, Some("executor 1234 was killed by SIGKILL"))], true),
            "\n  tenant  executor  restarts     CPU  trouble\n  \
             a           1234         2  12.3 s  its jail lacks landlock: none\n  \
             a              -         2  12.3 s  executor 1234 was killed by SIGKILL\n"
        );
        let lost =
            DeviceEntry { device: "host:1".into(), lost: Some("its process dies".into()), ..report.devices[0].clone() };
        report.devices.push(lost);
        report.executors.push(entry(Some(7), None));
        assert_eq!(
            render(&report),
            "host:0, 4 compute units, 3.0 MiB of 1.0 GiB in use\n\
             host:1, 4 compute units, 3.0 MiB of 1.0 GiB in use, lost: its process dies\n  \
             device  tenant  function  class      constants           on device  in host memory  invocations  running  \
             waiting\n  \
             host:0  a       f         real-time  host       1.0 KiB of 2.0 KiB           512 B      1.0 MiB        \
             1        3\n\n  \
             device  tenant  executor  restarts     CPU  trouble\n  \
             host:1  a              7         2  12.3 s  its jail lacks landlock: none\n"
        );
    }
}
