//! `atoll graph`: graphs of functions in a daemon.

mod deploy;
mod explain;

use super::functions::invoke::print_answer;
use super::functions::source::{self, BackgroundArgs};
use crate::control::{ClassName, Classify, ControlArgs};
use crate::failure::{OrUserError, user_error};
use crate::output::{Align, Table, print, print_json};
use crate::random::Random;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result};
use atoll_client::{Class, Content, GraphCall, GraphReport, Tensor};
use clap::Subcommand;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll graph deploy vision.toml
  atoll graph explain vision
  atoll graph explain vision --deadline-us 50000 --price-max 0.00001
  atoll graph invoke vision x=image.npy --save out/
  atoll graph invoke vision x=future:first/y --async=second
  atoll graph invoke classify file=file:cat.jpg
  atoll graph invoke embed 'x=text:a text'
  atoll infer --url http://127.0.0.1:8000 --model vision --input x=image.npy
  atoll graph ls --json
  atoll graph rm vision";

/// Deploy graphs of functions to a running daemon, and call them
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Deploy(DeployArgs),
    Ls(LsArgs),
    Rm(RmArgs),
    Invoke(InvokeArgs),
    Explain(ExplainArgs),
}

/// Deploy a graph, or replace the one of the same name
#[derive(Debug, clap::Args)]
struct DeployArgs {
    /// Its manifest, in TOML or JSON
    manifest: PathBuf,

    /// Name of the graph [default: the name in the manifest]
    #[arg(long)]
    name: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// List deployed graphs
#[derive(Debug, clap::Args)]
struct LsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Delete graphs. Their functions stay
#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Names of the graphs
    #[arg(required = true, value_name = "GRAPH")]
    graphs: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Call a graph
#[derive(Debug, clap::Args)]
struct InvokeArgs {
    /// Name of the graph
    graph: String,

    /// Input contents: a .npy file, an object, an output of a future, a number for every element, or
    /// random (the default for inputs that are not given); for inputs of type UINT8 or BYTES also
    /// the bytes of any file, or a text. For BYTES, repeat the input to give several strings
    #[arg(value_name = "NAME=FILE|@DIGEST|future:ID/OUTPUT|NUMBER|random|file:FILE|text:TEXT")]
    inputs: Vec<String>,

    /// Shape of an input that does not come from a file
    #[arg(long, value_name = "NAME=SIZES")]
    shape: Vec<String>,

    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Class of the call
    #[arg(long, value_enum)]
    class: Option<ClassName>,

    /// Deadline of the call: reject the call if it would take longer, and cancel it after this time
    #[arg(long, value_name = "MICROSECONDS")]
    deadline_us: Option<u64>,

    /// Reject the call if it would cost more than this, in units of account
    #[arg(long, value_name = "UNITS", value_parser = parse_price)]
    price_max: Option<f64>,

    /// Id of the call: calls with the same id get the same versions of functions
    #[arg(long)]
    id: Option<String>,

    /// Folder to write the outputs to, as NAME.npy; strings that are not text as NAME.0, NAME.1 and
    /// so on
    #[arg(long, value_name = "DIR", conflicts_with = "background")]
    save: Option<PathBuf>,

    #[command(flatten)]
    background: BackgroundArgs,

    /// Number of highest elements to show per row
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    top: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

/// Show the stages of a graph, their devices, measured times and prices, the assignments of stages
/// to devices that are optimal, and whether and where a call would run now
#[derive(Debug, clap::Args)]
struct ExplainArgs {
    /// Name of the graph
    graph: String,

    /// Deadline of that call [default: the graph's own]
    #[arg(long, value_name = "MICROSECONDS")]
    deadline_us: Option<u64>,

    /// Price limit of that call, in units of account [default: the graph's own]
    #[arg(long, value_name = "UNITS", value_parser = parse_price)]
    price_max: Option<f64>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Deploy(args) => deploy(&args),
        Command::Ls(args) => ls(&args),
        Command::Rm(args) => rm(&args),
        Command::Invoke(args) => invoke(&args),
        Command::Explain(args) => explain(&args),
    }
}

fn deploy(args: &DeployArgs) -> Result<()> {
    let about = || format!("cannot read {}", args.manifest.display());
    let manifest = std::fs::read_to_string(&args.manifest).with_context(about).or_user_error()?;
    // The manifest names files relative to its folder.
    let folder = args.manifest.parent().unwrap_or(Path::new(""));
    let manifest = deploy::with_files(&manifest, folder)?;
    let graph = args.control.connect()?.deploy_graph(&manifest, args.name.as_deref()).classify()?;
    if args.json {
        return print_json(&as_json(&graph));
    }
    Ok(print(&format!("deployed graph `{}` of {} stages\n", graph.name, graph.stages.len()))?)
}

fn ls(args: &LsArgs) -> Result<()> {
    let graphs = args.control.connect()?.graphs().classify()?;
    if args.json {
        return print_json(&graphs.iter().map(as_json).collect::<Vec<_>>());
    }
    let mut table = Table::new([
        ("graph", Align::Left),
        ("stages", Align::Right),
        ("deadline", Align::Right),
        ("HTTP", Align::Left),
        ("state", Align::Left),
    ]);
    for graph in graphs {
        table.row([
            graph.name,
            graph.stages.len().to_string(),
            graph.deadline_us.map_or("-".into(), |us| format!("{:.3} ms", us as f64 / 1e3)),
            graph.model,
            graph.failure.unwrap_or_else(|| "ready".into()),
        ]);
    }
    Ok(print(&table.to_string())?)
}

fn rm(args: &RmArgs) -> Result<()> {
    let mut client = args.control.connect()?;
    for graph in &args.graphs {
        client.remove_graph(graph).classify()?;
        if !args.json {
            print(&format!("removed graph `{graph}`\n"))?;
        }
    }
    if args.json { print_json(&json!({ "removed": args.graphs })) } else { Ok(()) }
}

fn invoke(args: &InvokeArgs) -> Result<()> {
    let mut client = args.control.connect()?;
    let graph = client.graph(&args.graph).classify()?;
    if let Some(reason) = &graph.failure {
        return Err(user_error(format!("graph `{}` cannot be called: {reason}", args.graph)));
    }
    let is_kept = |input: &&String| input.split_once('=').is_some_and(|(_, value)| source::is_kept(value));
    let (kept, given): (Vec<&String>, Vec<&String>) = args.inputs.iter().partition(is_kept);
    let given: Vec<String> = given.into_iter().cloned().collect();
    let specs = InputSpecs::parse(&given, &args.shape, &graph.inputs)?;
    let mut contents: BTreeMap<&str, Content> = BTreeMap::new();
    for (name, value) in kept.into_iter().filter_map(|text| text.split_once('=')) {
        if !graph.inputs.iter().any(|input| input.name == name) {
            let known: Vec<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
            return Err(user_error(format!("unknown input `{name}`; the inputs are {}", known.join(", "))));
        }
        contents.extend(source::kept(name, value)?.map(|content| (name, content)));
    }
    let mut random = Random::new(args.seed);
    let mut call = GraphCall::of(&args.graph);
    for input in &graph.inputs {
        call = match contents.remove(input.name.as_str()) {
            Some(content) => call.input(&input.name, content),
            None => {
                let tensor = specs.tensor(input, &mut random)?;
                let (datatype, shape, bytes) = (tensor.datatype, tensor.shape, tensor.bytes);
                call.input(&input.name, Tensor { datatype, shape, bytes })
            }
        };
    }
    let call = args.class.into_iter().fold(call, |call, class| call.class(Class::from(class)));
    let call = args.deadline_us.into_iter().fold(call, |call, us| call.deadline(Duration::from_micros(us)));
    let call = args.price_max.into_iter().fold(call, GraphCall::price_max);
    let call = args.id.iter().fold(call, GraphCall::id);
    if let Some(future) = args.background.id()? {
        client.defer_graph(&future, &call).classify()?;
        return source::print_begun(&future, args.json);
    }
    let answer = client.invoke_graph(&call).classify()?;
    print_answer(args.save.as_deref(), args.top, args.json, &answer)
}

fn explain(args: &ExplainArgs) -> Result<()> {
    let deadline = args.deadline_us.map(Duration::from_micros);
    let graph = args.control.connect()?.explain_graph(&args.graph, deadline, args.price_max).classify()?;
    if args.json {
        return print_json(&as_json(&graph));
    }
    if let Some(reason) = &graph.failure {
        return Ok(print(&format!("graph `{}` cannot be called: {reason}\n", graph.name))?);
    }
    let mut table = Table::new([
        ("stage", Align::Left),
        ("runs", Align::Left),
        ("device", Align::Left),
        ("after", Align::Left),
        ("when", Align::Left),
        ("mean", Align::Right),
    ]);
    for stage in &graph.stages {
        let builtin = stage.builtin.as_ref().map(|builtin| match builtin.starts_with("wasm ") {
            true => builtin.clone(),
            false => format!("{builtin} (built-in)"),
        });
        table.row([
            stage.name.clone(),
            stage.function.clone().or(builtin).unwrap_or_default(),
            stage.device.clone().unwrap_or_else(|| "-".into()),
            if stage.after.is_empty() { "-".into() } else { stage.after.join(", ") },
            stage.when.clone().unwrap_or_else(|| "always".into()),
            stage.mean_ns.map_or("-".into(), |ns| format!("{:.3} ms", ns as f64 / 1e6)),
        ]);
    }
    let mut text = table.to_string();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", verdict(&graph));
    text.push_str(&explain::intermediates(&graph));
    text.push_str(&explain::versions(&graph));
    graph.admission.iter().for_each(|admission| text.push_str(&explain::admission(admission)));
    Ok(print(&text)?)
}

fn verdict(graph: &GraphReport) -> String {
    let Some(latency) = graph.latency_ns.map(|ns| ns as f64 / 1e6) else {
        return "its latency is unknown until all its functions have been called".into();
    };
    let whole = format!("{latency:.3} ms if nothing waits and no stage is skipped");
    match graph.deadline_us.map(|us| us as f64 / 1e3) {
        None => format!("{whole}; no deadline"),
        Some(deadline) if latency <= deadline => format!("{whole}, within the deadline of {deadline:.3} ms"),
        Some(deadline) => format!("{whole}, which misses the deadline of {deadline:.3} ms"),
    }
}

/// The JSON form of a graph.
fn as_json(graph: &GraphReport) -> Value {
    json!({
        "name": graph.name,
        "model": graph.model,
        "failure": graph.failure,
        "deadline_us": graph.deadline_us,
        "latency_ns": graph.latency_ns,
        "handed_over_bytes": graph.handed_over_bytes,
        "copied_bytes": graph.copied_bytes,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "stages": graph.stages,
        "admission": graph.admission,
    })
}

/// Parses a price limit.
fn parse_price(text: &str) -> Result<f64, String> {
    let units: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if units.is_finite() && units >= 0.0 { Ok(units) } else { Err("it must be a finite number of at least 0".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_limit_is_a_finite_number() {
        assert_eq!((parse_price("0"), parse_price("0.25")), (Ok(0.0), Ok(0.25)));
        for wrong in ["nan", "inf", "-1", "-inf", "x", ""] {
            assert!(parse_price(wrong).is_err(), "{wrong}");
        }
    }
}
