//! `atoll device`: the devices of a daemon.

use crate::control::{Classify, ControlArgs};
use crate::output::{Align, Table, bytes, print, print_json};
use anyhow::Result;
use atoll_client::{DeviceCondition, DeviceReport, DevicesReport};
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll device ls
  atoll device drain host:1     # before maintenance; requests go to the other devices
  atoll device resume host:1
  atoll devices --json

A drained device finishes the requests that it has and gets no new ones. Functions that are on no other device \
cannot be called meanwhile.";

/// List the devices of a daemon; drain and resume them
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ListArgs),
    /// Give a device no new requests
    Drain(DeviceArgs),
    /// Give a drained device requests again
    Resume(DeviceArgs),
}

/// List the devices, with their state and work
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, clap::Args)]
struct DeviceArgs {
    /// The device, as in host:1
    #[arg(value_name = "DEVICE")]
    device: String,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        None => list(&args.list),
        Some(Command::Ls(args)) => list(args),
        Some(Command::Drain(args)) => args.control.connect()?.drain(&args.device, true).classify(),
        Some(Command::Resume(args)) => args.control.connect()?.drain(&args.device, false).classify(),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let report = args.control.connect()?.devices().classify()?;
    if args.json {
        return print_json(&report);
    }
    Ok(print(&render(&report))?)
}

fn render(report: &DevicesReport) -> String {
    let mut table = Table::new([
        ("device", Align::Left),
        ("state", Align::Left),
        ("units", Align::Right),
        ("memory", Align::Right),
        ("in use", Align::Right),
        ("functions", Align::Right),
        ("invocations", Align::Right),
        ("placed", Align::Right),
        ("moved", Align::Right),
    ]);
    report.devices.iter().for_each(|device| table.row(cells(device)));
    let queue = match (&report.policy, report.waiting) {
        (Some(policy), Some(waiting)) => format!("placement policy {policy}; {waiting} waiting for a device\n"),
        (Some(policy), None) => format!("placement policy {policy}\n"),
        (None, _) => String::new(),
    };
    format!("{queue}{table}")
}

fn cells(device: &DeviceReport) -> [String; 9] {
    let state = match (device.state, &device.lost) {
        (DeviceCondition::Lost, Some(reason)) => format!("lost: {reason}"),
        (DeviceCondition::Lost, None) => "lost".into(),
        (DeviceCondition::Drained, _) => "drained".into(),
        (DeviceCondition::Unready, _) => "being replaced".into(),
        (DeviceCondition::Ready, _) => "ready".into(),
    };
    let work = |of: fn(&atoll_client::DeviceWork) -> String| device.work.as_ref().map_or_else(|| "-".into(), of);
    [
        device.device.clone(),
        state,
        device.compute_units.to_string(),
        work(|work| bytes(work.memory_bytes)),
        work(|work| bytes(work.memory_used_bytes)),
        work(|work| work.functions.to_string()),
        work(|work| work.invocations.to_string()),
        work(|work| work.placed.to_string()),
        work(|work| work.moved.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_line_with_its_state() {
        let device =
            |name: &str, state| DeviceReport { device: name.into(), state, lost: None, compute_units: 2, work: None };
        let devices = vec![device("host:0", DeviceCondition::Ready), device("host:1", DeviceCondition::Drained)];
        let text = render(&DevicesReport { policy: Some("cost".into()), waiting: None, devices });
        assert!(text.starts_with("placement policy cost\n"), "{text}");
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("host:0").contains("ready") && line("host:1").contains("drained"), "{text}");
    }
}
