//! `atoll session`: sessions of CUDA programs in a daemon.

use super::functions::ls::class_name;
use crate::control::{Classify, ControlArgs};
use crate::output::{Align, Table, bytes, print, print_json};
use anyhow::Result;
use atoll_client::{CudaSessionReport, CudaSessionState};
use clap::Subcommand;

const EXAMPLES: &str = "\
Examples:
  atoll session ls
  atoll session suspend 7                  # to host memory, until the next call of the program
  atoll session resume 7 --device host:1   # moves it to another device of the same kind

Root and the daemon's own user see the sessions of all tenants, unless they choose one with --tenant.";

/// List the sessions of CUDA programs; suspend them to host memory and resume them, also on another
/// device
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ListArgs),
    Suspend(SuspendArgs),
    Resume(ResumeArgs),
}

/// List the open sessions, with their device and where their memory is
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Move the memory of a session to host memory, once its running work has ended
#[derive(Debug, clap::Args)]
struct SuspendArgs {
    /// The number of the session
    #[arg(value_name = "SESSION")]
    session: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Bring a suspended session back to its device, or move a session to another one
#[derive(Debug, clap::Args)]
struct ResumeArgs {
    /// The number of the session
    #[arg(value_name = "SESSION")]
    session: u64,

    /// The device, of the same kind, as in host:1 [default: the one that it is or was on]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Ls(ListArgs { json, control }) => {
            let sessions = control.connect()?.cuda_sessions().classify()?;
            if *json { print_json(&sessions) } else { Ok(print(&table(&sessions))?) }
        }
        Command::Suspend(SuspendArgs { session, json, control }) => {
            show(&control.connect()?.suspend_cuda_session(*session).classify()?, *json)
        }
        Command::Resume(ResumeArgs { session, device, json, control }) => {
            show(&control.connect()?.resume_cuda_session(*session, device.as_deref()).classify()?, *json)
        }
    }
}

fn show(session: &CudaSessionReport, json: bool) -> Result<()> {
    if json { print_json(session) } else { Ok(print(&table(std::slice::from_ref(session)))?) }
}

fn table(sessions: &[CudaSessionReport]) -> String {
    let mut table = Table::new([
        ("session", Align::Right),
        ("tenant", Align::Left),
        ("class", Align::Left),
        ("device", Align::Left),
        ("memory", Align::Right),
        ("state", Align::Left),
        ("stored functions", Align::Left),
    ]);
    for report in sessions {
        table.row([
            report.session.to_string(),
            report.tenant.to_string(),
            class_name(report.class).into(),
            report.device.clone(),
            bytes(report.memory_bytes),
            state(report),
            stored(report),
        ]);
    }
    table.to_string()
}

fn state(report: &CudaSessionReport) -> String {
    match (report.state, report.idle_s) {
        (CudaSessionState::Running, _) => "running".into(),
        (CudaSessionState::Idle, Some(seconds)) => format!("idle for {seconds:.0} s"),
        (CudaSessionState::Idle, None) => "idle".into(),
        (CudaSessionState::Suspending, _) => "being suspended".into(),
        (CudaSessionState::Suspended, _) => "suspended".into(),
    }
}

fn stored(report: &CudaSessionReport) -> String {
    let CudaSessionReport { stored_functions, stored_calls, stored_differences, .. } = report;
    match (stored_functions, stored_calls, stored_differences) {
        (0, 0, 0) => "-".into(),
        (functions, calls, 0) => format!("{functions}, {calls} calls"),
        (functions, calls, differences) => format!("{functions}, {calls} calls, {differences} differed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_has_a_line_with_its_device_and_state() {
        let report = |session, state, idle_s| CudaSessionReport {
            session,
            tenant: "a".parse().unwrap(),
            class: atoll_client::Class::BestEffort,
            device: "host:1".into(),
            memory_bytes: 256 << 20,
            state,
            idle_s,
            stored_functions: if session == 8 { 2 } else { 0 },
            stored_calls: if session == 8 { 100 } else { 0 },
            stored_differences: u64::from(session == 9),
        };
        let text = table(&[
            report(7, CudaSessionState::Idle, Some(12.3)),
            report(8, CudaSessionState::Suspended, None),
            report(9, CudaSessionState::Suspending, None),
            report(10, CudaSessionState::Running, None),
        ]);
        let line = |number: &str| text.lines().find(|line| line.trim_start().starts_with(number)).unwrap().to_owned();
        assert!(line("7 ").contains("host:1") && line("7 ").contains("256.0 MiB"), "{text}");
        let states = [("7 ", "idle for 12 s"), ("8 ", "suspended"), ("9 ", "being suspended"), ("10 ", "running")];
        assert!(states.iter().all(|(number, state)| line(number).contains(state)), "{text}");
        let ends = [("7 ", "-"), ("8 ", "2, 100 calls"), ("9 ", "0, 0 calls, 1 differed"), ("10 ", "-")];
        assert!(ends.iter().all(|(number, end)| line(number).trim_end().ends_with(end)), "{text}");
    }
}
