//! `gpu-probe`: measures properties of an NVIDIA GPU that Atoll's design relies on.
//!
//! It needs only the driver, which it loads at startup; its kernels are hand-written PTX in
//! `kernels/`. Probes are independent: a failing probe is reported and the next one runs. A probe
//! that may hang or break its context runs in a child process.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is what a command-line program is for")]

mod bench;
mod child;
mod device;
mod probes;
mod report;
mod stats;

use bench::Bench;
use child::Ended;
use clap::Parser;
use probes::{PROBES, Probe};
use report::{Findings, Report, Row};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Version of the JSON report.
const REPORT_VERSION: u32 = 1;
/// No probe starts later than this; none takes longer than half a minute.
const START_TIME_MAX: Duration = Duration::from_secs(150);

const EXIT_PROBE_FAILED: u8 = 1;
const EXIT_NO_DEVICE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  gpu-probe                                  run everything, print a table
  gpu-probe --json probe.json                and keep the numbers
  gpu-probe --only flag-routes,read-cost     two of the probes
  gpu-probe --list                           what there is to probe

Exit status: 0 all probes ran, 1 some failed, 2 no NVIDIA driver or device.";

/// Measure the cost of preemption on this NVIDIA GPU
#[derive(Debug, Parser)]
#[command(name = "gpu-probe", version, after_help = EXAMPLES)]
struct Arguments {
    /// File for the results, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these probes
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = probe_name)]
    only: Vec<String>,
    /// List the probes and exit
    #[arg(long)]
    list: bool,
    /// Device number, as counted by the driver
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    device: u32,
    /// Run one probe in this process and write its rows as JSON lines (used internally)
    #[arg(long, hide = true, value_name = "NAME", value_parser = probe_name)]
    child: Option<String>,
}

fn probe_name(text: &str) -> Result<String, String> {
    let names = || PROBES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    probes::find(text).map(|p| p.name.to_owned()).ok_or_else(|| format!("unknown probe; the probes are {}", names()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        PROBES.iter().for_each(|probe| println!("{:16}{}", probe.name, probe.about));
        return ExitCode::SUCCESS;
    }
    let bench = match Bench::open(arguments.device) {
        Ok(bench) => bench,
        Err(error) => {
            eprintln!("gpu-probe: {error}\nThis program needs an NVIDIA GPU and its driver.");
            return ExitCode::from(EXIT_NO_DEVICE);
        }
    };
    match &arguments.child {
        Some(name) => run_as_child(&bench, name),
        None => run_all(&bench, &arguments),
    }
}

/// Runs one probe and writes each of its rows as a line.
fn run_as_child(bench: &Bench, name: &str) -> ExitCode {
    if let Some(probe) = probes::find(name) {
        run_here(bench, probe, true);
    }
    ExitCode::SUCCESS
}

fn run_all(bench: &Bench, arguments: &Arguments) -> ExitCode {
    let device = match bench.facts() {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu-probe: cannot read the properties of the device: {error}");
            return ExitCode::from(EXIT_NO_DEVICE);
        }
    };
    let started = Instant::now();
    let mut report = Report { version: REPORT_VERSION, device, rows: Vec::new() };
    for probe in PROBES.iter().filter(|p| arguments.only.is_empty() || arguments.only.iter().any(|name| name == p.name))
    {
        eprintln!("gpu-probe: {} …", probe.name);
        let mut rows = if started.elapsed() > START_TIME_MAX {
            vec![Row::error("all", format!("skipped: the previous probes took {} s", started.elapsed().as_secs()))]
        } else if probe.isolated {
            run_isolated(bench, probe, arguments.device)
        } else {
            run_here(bench, probe, false)
        };
        rows.iter_mut().for_each(|row| row.probe = probe.name.to_owned());
        report.rows.extend(rows);
    }
    print!("{}", report.table());
    if let Some(path) = &arguments.json
        && let Err(error) = write_json(&report, path)
    {
        eprintln!("gpu-probe: cannot write {}: {error}", path.display());
        return ExitCode::from(EXIT_PROBE_FAILED);
    }
    if report.has_errors() { ExitCode::from(EXIT_PROBE_FAILED) } else { ExitCode::SUCCESS }
}

fn run_here(bench: &Bench, probe: &Probe, announce: bool) -> Vec<Row> {
    let mut found = Findings { announce, ..Findings::default() };
    if let Err(error) = (probe.run)(bench, &mut found) {
        found.push(Row::error("last step", error));
    }
    found.rows
}

/// Runs a probe in a child process, and checks whether this process still has its context
/// afterwards.
fn run_isolated(bench: &Bench, probe: &Probe, device_index: u32) -> Vec<Row> {
    let mut rows = match child::run(probe.name, device_index) {
        Ok((mut rows, ended)) => {
            match ended {
                Ended::Done => {}
                Ended::Stopped => rows.push(Row::error("its process", "hung and was killed")),
                Ended::Failed(how) => rows.push(Row::error("its process", how)),
            }
            rows
        }
        Err(error) => vec![Row::error("its process", error)],
    };
    rows.push(match probes::sticky_error::increment(&bench.context) {
        Ok(()) => Row::text("another process", "its context", "survives"),
        Err(error) => Row::error("another process", error),
    });
    rows
}

fn write_json(report: &Report, path: &PathBuf) -> std::io::Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
        let arguments = Arguments::try_parse_from(["gpu-probe", "--only", "read-cost,dispatch", "--json", "x.json"])
            .expect("valid");
        assert_eq!(arguments.only, ["read-cost", "dispatch"]);
        assert!(Arguments::try_parse_from(["gpu-probe", "--only", "no-such-probe"]).is_err());
    }

    #[test]
    fn probes_have_distinct_names_and_a_line_about_them() {
        let mut names: Vec<_> = PROBES.iter().map(|p| p.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
        assert!(PROBES.iter().all(|p| !p.about.is_empty() && probes::find(p.name).is_some()));
    }
}
