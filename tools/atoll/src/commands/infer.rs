//! `atoll infer`

use crate::client::URL_DEFAULT;
use crate::credentials::CredentialArgs;
use crate::engine::EngineArgs;
use crate::expected::compare;
use crate::failure::user_error;
use crate::invoker::{Invoker, Local, Remote, Terms};
use crate::output::{milliseconds, print, print_json};
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::{InputArgs, Summary, save, summaries_text, summary};
use anyhow::{Context, Result};
use serde_json::json;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll infer --model resnet50.kg
  atoll infer --model magika.onnx --input bytes=features.npy --top 3
  atoll infer --model magika --url localhost:8000 --priority 1 --save answers/
  atoll infer --model resnet50.kg --save host/
  atoll infer --model resnet50.kg --device cuda --expect host/
  atoll infer --model bert.kg --shape input_ids=1,64 --repeat 20 --json
  atoll infer --model bert.onnx --symbol seq=1..512 --fix batch=1 --shape input_ids=1,64";

/// Run a model: a file in this process, or a model of a running daemon
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A .kg or .onnx file, or the name of a model in a daemon
    #[arg(long, value_name = "FILE|NAME")]
    model: String,

    /// Address of the daemon, for a model given by name [default: 127.0.0.1:8000]
    #[arg(long)]
    url: Option<String>,

    #[command(flatten)]
    credentials: CredentialArgs,

    #[command(flatten)]
    symbols: ModelArgs,

    #[command(flatten)]
    inputs: InputArgs,

    /// 1 for real-time, 2 for best-effort, 0 for the model's own class
    #[arg(long, default_value_t = 0)]
    priority: u64,

    /// Cancel the request after this time
    #[arg(long, value_name = "MICROSECONDS")]
    deadline_us: Option<u64>,

    /// Number of requests; prints the distribution of their times
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::MIN)]
    repeat: NonZeroU32,

    /// Number of highest elements to show per row
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    top: usize,

    /// Folder to write every output to, as NAME.npy
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Folder with outputs of an earlier --save; fail if the outputs differ by more than rounding
    #[arg(long, value_name = "DIR")]
    expect: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let invoker = invoker(args)?;
    let inputs = args.inputs.tensors(invoker.inputs())?;
    let terms = Terms { priority: args.priority, deadline: args.deadline_us.map(Duration::from_micros) };
    let mut times = Vec::new();
    let mut answer = None;
    for _ in 0..args.repeat.get() {
        let start = Instant::now();
        answer = Some(invoker.invoke(&inputs, terms)?);
        times.push(start.elapsed());
    }
    invoker.stop();
    let answer = answer.context("there is at least one request")?;
    if let Some(folder) = &args.save {
        save(folder, &answer.outputs)?;
    }
    let difference = args.expect.as_ref().map(|folder| compare(folder, &answer.outputs)).transpose()?;
    let summaries: Vec<Summary> = answer.outputs.iter().map(|output| summary(output, args.top)).collect();
    if args.json {
        let milliseconds: Vec<f64> = times.iter().map(|t| milliseconds(*t)).collect();
        return print_json(&json!({
            "model": args.model,
            "milliseconds": milliseconds,
            "preemptions": answer.preemptions,
            "outputs": summaries,
            "difference": difference,
        }));
    }
    let expected = difference
        .map_or(String::new(), |difference| format!("as expected, with a relative difference of {difference:.1e}\n"));
    Ok(print(&(text(&summaries, &times) + &expected))?)
}

/// A path with the extension .kg or .onnx is a file; anything else is a name.
fn invoker(args: &Args) -> Result<Invoker> {
    let path = Path::new(&args.model);
    let is_file = path.extension().is_some_and(|e| e == "kg" || e == "onnx");
    if !is_file && !args.symbols.is_empty() {
        return Err(user_error("--symbol, --fix and --state apply to .onnx files only, not to a model in a daemon"));
    }
    match (&args.url, is_file) {
        (None, true) => Ok(Invoker::Local(Local::start(path, &args.symbols, &args.engine)?)),
        (Some(_), true) if path.exists() => {
            Err(user_error("--model is a file, but --url needs the name of a model in the daemon"))
        }
        (url, _) => {
            let url = url.as_deref().unwrap_or(URL_DEFAULT);
            Ok(Invoker::Remote(Remote::connect(url, &args.model, &args.credentials)?))
        }
    }
}

fn text(summaries: &[Summary], times: &[Duration]) -> String {
    let mut text = summaries_text(summaries);
    // Writing to a string cannot fail.
    match times {
        [time] => drop(writeln!(text, "{:.3} ms", milliseconds(*time))),
        _ => {
            let d = Distribution::of(times);
            let _ = writeln!(
                text,
                "{} times: p50 {:.3} ms, p90 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
                d.count, d.p50_ms, d.p90_ms, d.p99_ms, d.max_ms
            );
        }
    }
    text
}
