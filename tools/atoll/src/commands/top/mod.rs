//! `atoll top`

mod sample;
mod screen;
mod view;

use crate::control::ControlArgs;
use crate::failure::user_error;
use crate::output::{Align, Table, bytes, counted, print, print_json};
use anyhow::Result;
use atoll_client::Class;
use sample::{DeviceRow, FunctionRow, Sampler, Snapshot, Whole};
use std::io::{IsTerminal, stdout};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll top
  atoll top --interval 0.2
  atoll top --once
  atoll top --once --json | jq '.functions[] | [.function, .requests_per_s, .latency_ms.p99]'

Rates, latencies and shares refer to the last interval. Latency is the time from submission to the end of a \
request, as measured by the daemon. Root and the daemon's own user see the device and all tenants, unless they \
choose one with --tenant; others see their own functions. The class is that of the requests that arrived in \
the interval, or else that of the function.

Keys: < and > choose the column that sorts the functions, r reverses the order, / filters by name, arrows and \
PgUp, PgDn, Home and End scroll, q quits.";

/// Show the current activity of a daemon: modes, queues, compute units, preemptions, and the
/// requests of each function
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interval between snapshots, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    interval: f64,

    /// Print one snapshot and exit
    #[arg(long)]
    once: bool,

    /// Print the snapshot as JSON
    #[arg(long, requires = "once")]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("it must be at least 0.05 and at most 3600".into())
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.once && !stdout().is_terminal() {
        return Err(user_error(
            "standard output is not a terminal; use `atoll top --once` for one snapshot, with --json for programs",
        ));
    }
    let mut sampler = Sampler::new(args.control.connect()?)?;
    let interval = Duration::from_secs_f64(args.interval);
    if !args.once {
        return screen::run(&mut sampler, interval);
    }
    std::thread::sleep(interval);
    let snapshot = sampler.sample()?;
    if args.json { print_json(&snapshot) } else { Ok(print(&text(&snapshot))?) }
}

/// A snapshot as text.
fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for device in &snapshot.devices {
        text += &format!("{}\n", headline(snapshot, device));
        let Some(whole) = &device.whole else { continue };
        whole_lines(whole).iter().for_each(|line| text += &format!("{line}\n"));
        for unit in &whole.units {
            text +=
                &format!("compute unit {}: {:.0} %, {:.0} chunks/s\n", unit.unit, unit.used * 100.0, unit.chunks_per_s);
        }
    }
    text + &functions(snapshot).to_string()
}

fn headline(snapshot: &Snapshot, row: &DeviceRow) -> String {
    let lost = row.lost.as_ref().map(|why| format!(", lost: {why}")).unwrap_or_default();
    let Snapshot { policy, uptime_s, .. } = snapshot;
    let (device, compute_units) = (&row.device, counted(row.compute_units, "compute unit"));
    format!("{device}, {compute_units}, policy {policy}, up for {}{lost}", age(*uptime_s))
}

fn whole_lines(whole: &Whole) -> [String; 4] {
    let queues: Vec<String> =
        whole.queue_depths.iter().map(|depth| format!("{depth} of {}", whole.queue_capacity)).collect();
    let latency = match whole.preemption_latency_us.count {
        0 => String::new(),
        _ => format!(
            ", took {:.0} µs p50, {:.0} µs p99",
            whole.preemption_latency_us.p50, whole.preemption_latency_us.p99
        ),
    };
    [
        format!("mode: {}, real-time for {:.0} % of the interval", whole.mode, whole.real_time_share * 100.0),
        format!(
            "device queues: {}; waiting: {} real-time, {} best-effort",
            queues.join(", "),
            whole.real_time_waiting,
            whole.best_effort_waiting
        ),
        format!("preemptions: {:.1}/s, {} in total{latency}", whole.preemptions_per_s, whole.preemptions),
        format!(
            "launches: {:.0}/s, {:.1}/s evicted, {:.1}/s padded; memory: {} of {}",
            whole.launches_per_s,
            whole.evicted_launches_per_s,
            whole.padded_launches_per_s,
            bytes(whole.memory_used_bytes),
            bytes(whole.memory_bytes)
        ),
    ]
}

/// The index of a column.
type Column = usize;

/// The device column is shown only if there are several devices.
const COLUMNS: [(&str, Align); 12] = [
    ("device", Align::Left),
    ("tenant", Align::Left),
    ("function", Align::Left),
    ("class", Align::Left),
    ("running", Align::Right),
    ("waiting", Align::Right),
    ("requests/s", Align::Right),
    ("failed/s", Align::Right),
    ("mean ms", Align::Right),
    ("p50 ms", Align::Right),
    ("p99 ms", Align::Right),
    ("preempted/s", Align::Right),
];

fn functions(snapshot: &Snapshot) -> Table {
    let mut table = Table::new(COLUMNS);
    snapshot.functions.iter().for_each(|row| table.row(cells(row)));
    if snapshot.devices.len() <= 1 {
        table.hide(0);
    }
    table
}

fn cells(row: &FunctionRow) -> [String; COLUMNS.len()] {
    let latency = |of: fn(&sample::Latency) -> f64| {
        row.latency_ms.as_ref().map_or_else(|| "-".into(), |latency| format!("{:.2}", of(latency)))
    };
    [
        row.device.clone(),
        row.tenant.to_string(),
        row.function.clone(),
        class(row),
        row.running.to_string(),
        row.waiting.to_string(),
        format!("{:.1}", row.requests_per_s),
        format!("{:.1}", row.failures_per_s),
        latency(|latency| latency.mean),
        latency(|latency| latency.p50),
        latency(|latency| latency.p99),
        format!("{:.1}", row.preemptions_per_s),
    ]
}

/// The class that the requests of the interval had, as in `60 % real-time`; that of the function if
/// none arrived.
fn class(row: &FunctionRow) -> String {
    match row.real_time_share {
        None => row.class.to_string(),
        Some(share) if share >= 1.0 => Class::RealTime.to_string(),
        Some(share) if share <= 0.0 => Class::BestEffort.to_string(),
        // Rounding hides neither class.
        Some(share) => format!("{:.0} % real-time", (share * 100.0).clamp(1.0, 99.0)),
    }
}

/// Formats a duration, as in `3 h 5 min`.
fn age(seconds: f64) -> String {
    let seconds = seconds as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests;
