//! `atoll future`: calls that continue in the background.

use super::functions::invoke::print_answer;
use crate::control::{Classify, ControlArgs};
use crate::failure::user_error;
use crate::output::{Align, Table, bytes, parse_seconds, print, print_json};
use anyhow::{Result, anyhow};
use atoll_client::{Answer, Client, FutureReport, FutureState};
use clap::Subcommand;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll fn invoke gemm a=a.npy b=b.npy --async=first
  atoll fn invoke relu x=future:first/y --async=second
  atoll future ls
  atoll future wait first second --timeout 10
  atoll future result second --save out/
  atoll future cancel first
  atoll future rm first second

A future belongs to its tenant. The daemon keeps the outputs for a minute after the end of the call, or until \
`atoll future rm`.";

/// List, wait for and cancel calls that continue in the background, and print their outputs
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(LsArgs),
    Show(ShowArgs),
    Wait(WaitArgs),
    Result(ResultArgs),
    /// Cancel calls. Their futures stay, as failed ones, and calls that name their outputs fail
    Cancel(NamesArgs),
    /// Forget futures with their outputs. Calls that have not ended continue
    Rm(NamesArgs),
}

/// List futures
#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Show a future: what it calls, its state, its outputs, and why it failed
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Id of the future
    #[arg(value_name = "ID")]
    future: String,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Wait until calls end. Fails if one of them failed
#[derive(Debug, clap::Args)]
struct WaitArgs {
    /// Ids of the futures
    #[arg(required = true, value_name = "ID")]
    futures: Vec<String>,

    /// Longest wait for each of them; the calls continue after it [default: until they end]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<f64>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Wait until a call ends, and print or save its outputs
#[derive(Debug, clap::Args)]
struct ResultArgs {
    /// Id of the future
    #[arg(value_name = "ID")]
    future: String,

    /// Longest wait; the call continues after it [default: until it ends]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<f64>,

    /// Folder to write the outputs to, as NAME.npy
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Number of highest elements to show per row
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    top: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, clap::Args)]
struct NamesArgs {
    /// Ids of the futures
    #[arg(required = true, value_name = "ID")]
    futures: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Ls(args) => ls(&args),
        Command::Show(args) => show(&args),
        Command::Wait(args) => wait(&args),
        Command::Result(args) => result(&args),
        Command::Cancel(args) => cancel(&args),
        Command::Rm(args) => rm(&args),
    }
}

fn ls(args: &LsArgs) -> Result<()> {
    let futures = args.control.connect()?.futures().classify()?;
    if args.json {
        return print_json(&futures);
    }
    let mut table = Table::new([
        ("future", Align::Left),
        ("calls", Align::Left),
        ("state", Align::Left),
        ("outputs", Align::Right),
        ("age", Align::Right),
        ("kept for", Align::Right),
    ]);
    for future in futures {
        let (calls, state) = (calls(&future), state_name(future.state));
        table.row([
            future.future,
            calls,
            state.into(),
            bytes(future.bytes),
            seconds(future.age_ms),
            future.expires_in_ms.map_or("-".into(), seconds),
        ]);
    }
    Ok(print(&table.to_string())?)
}

fn show(args: &ShowArgs) -> Result<()> {
    let future = args.control.connect()?.future(&args.future).classify()?;
    if args.json {
        return print_json(&future);
    }
    let mut text = format!("future `{}`: {}, calls {}\n", future.future, state_name(future.state), calls(&future));
    // Writing to a string cannot fail.
    for output in &future.outputs {
        let _ = writeln!(text, "  {}: {}{:?}", output.name, output.form.datatype, output.form.shape);
    }
    if let Some(failure) = &future.failure {
        let _ = writeln!(text, "  {failure}");
    }
    let age = seconds(future.age_ms);
    let _ = match future.expires_in_ms {
        None => writeln!(text, "begun {age} ago"),
        Some(left) => writeln!(text, "begun {age} ago, kept for another {}", seconds(left)),
    };
    Ok(print(&text)?)
}

fn wait(args: &WaitArgs) -> Result<()> {
    let mut client = args.control.connect()?;
    let mut reports: Vec<FutureReport> = Vec::new();
    let mut failures: Vec<anyhow::Error> = Vec::new();
    for future in &args.futures {
        match ended(&mut client, future, args.timeout) {
            Ok(_) if !args.json => print(&format!("`{future}` is done\n"))?,
            Ok(_) => {}
            Err(error) => failures.push(error),
        }
        // An unknown one has no description, and its error is among the failures.
        if args.json {
            reports.extend(client.future(future).ok());
        }
    }
    if args.json {
        print_json(&reports)?;
    }
    match failures.len() {
        0 => Ok(()),
        1 => Err(failures.remove(0)),
        _ => {
            let all: Vec<String> = failures.iter().map(|error| format!("{error:#}")).collect();
            Err(anyhow!("{}", all.join("; ")))
        }
    }
}

fn result(args: &ResultArgs) -> Result<()> {
    let answer = ended(&mut args.control.connect()?, &args.future, args.timeout)?;
    print_answer(args.save.as_deref(), args.top, args.json, &answer)
}

/// Waits for the end of a call. The error tells a call that failed from a future that there is not.
fn ended(client: &mut Client, future: &str, timeout_s: Option<f64>) -> Result<Answer> {
    let error = match client.await_future_within(future, timeout_s.map(Duration::from_secs_f64)) {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    match client.future(future).ok().and_then(|report| report.failure) {
        Some(failure) => {
            let message = format!("the call of future `{future}` failed: {failure}");
            Err(if failure.kind.is_clients() { user_error(message) } else { anyhow!(message) })
        }
        None => Err(error).classify(),
    }
}

fn cancel(args: &NamesArgs) -> Result<()> {
    each(args, "cancelled", Client::cancel_future)
}

fn rm(args: &NamesArgs) -> Result<()> {
    each(args, "removed", Client::forget_future)
}

/// Does something to each future, and prints their ids.
fn each(
    args: &NamesArgs,
    done: &str,
    act: impl Fn(&mut Client, &str) -> Result<(), atoll_client::ClientError>,
) -> Result<()> {
    let mut client = args.control.connect()?;
    for future in &args.futures {
        act(&mut client, future).classify()?;
        if !args.json {
            print(&format!("{done} `{future}`\n"))?;
        }
    }
    if args.json { print_json(&json!({ done: args.futures })) } else { Ok(()) }
}

/// What a future calls: its functions in order, or its graph.
fn calls(future: &FutureReport) -> String {
    match &future.graph {
        Some(graph) => format!("graph {graph}"),
        None => future.functions.join(", "),
    }
}

fn state_name(state: FutureState) -> &'static str {
    match state {
        FutureState::Running => "running",
        FutureState::Done => "done",
        FutureState::Failed => "failed",
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}
