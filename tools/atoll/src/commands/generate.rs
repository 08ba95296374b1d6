//! `atoll generate`

use crate::client::{Prompt, URL_DEFAULT};
use crate::credentials::CredentialArgs;
use crate::engine::EngineArgs;
use crate::failure::{OrUserError, user_error};
use crate::invoker::{Invoker, Local, Remote, Sequence, Terms};
use crate::output::{milliseconds, print, print_json};
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputArgs;
use anyhow::{Context, Result};
use atoll_protocol::{DataType, Tensor, TensorMetadata, to_f64};
use serde_json::json;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll generate --model gpt2.kg --tokens 464,3290 --max-new 20
  atoll generate --model gpt2.onnx --state auto --symbol past_sequence_length=0..1024 \\
      --tokens 464,3290 --json
  atoll generate --model gpt2 --url localhost:8000 --tokens 464,3290 --end-token 50256";

/// Generate tokens with a decoder that keeps its past keys and values as state
///
/// The prompt is the first step of a session; each further step takes the token with the largest
/// logit. The inputs `input_ids`, `attention_mask` and `position_ids` are filled in; others come
/// from --input and stay the same. A model of a daemon with `[generation]` in its settings takes
/// these steps itself, and answers one request with all tokens.
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

    /// Prompt, as token ids
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', required = true)]
    tokens: Vec<i64>,

    /// Largest number of tokens to generate
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::new(20).unwrap_or(NonZeroU32::MIN))]
    max_new: NonZeroU32,

    /// Token id that ends the generation
    #[arg(long, value_name = "TOKEN")]
    end_token: Option<i64>,

    #[command(flatten)]
    symbols: ModelArgs,

    #[command(flatten)]
    inputs: InputArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Inputs that this command fills in.
const MADE: [&str; 3] = ["input_ids", "attention_mask", "position_ids"];

pub(crate) fn run(args: &Args) -> Result<()> {
    let invoker = invoker(args)?;
    let generated = generate(args, &invoker);
    invoker.stop();
    let (tokens, times) = generated?;
    let (first, steps) = times.split_first().context("the prompt is at least one step")?;
    if args.json {
        let steps: Vec<f64> = steps.iter().map(|time| milliseconds(*time)).collect();
        return print_json(&json!({
            "model": args.model,
            "prompt": args.tokens,
            "tokens": tokens,
            "prompt_ms": milliseconds(*first),
            "token_ms": steps,
        }));
    }
    let text: Vec<String> = tokens.iter().map(i64::to_string).collect();
    let mut report =
        format!("{}\nprompt of {} tokens {:.3} ms", text.join(","), args.tokens.len(), milliseconds(*first));
    if !steps.is_empty() {
        let d = Distribution::of(steps);
        report += &format!(", then {} tokens: p50 {:.3} ms, max {:.3} ms", d.count, d.p50_ms, d.max_ms);
    }
    Ok(print(&(report + "\n"))?)
}

fn invoker(args: &Args) -> Result<Invoker> {
    let path = Path::new(&args.model);
    let is_file = path.extension().is_some_and(|e| e == "kg" || e == "onnx");
    match (&args.url, is_file) {
        (None, true) => Ok(Invoker::Local(Local::start(path, &args.symbols, &args.engine)?)),
        (Some(_), true) => Err(user_error("--model is a file, but --url needs the name of a model in the daemon")),
        (_, false) if !args.symbols.is_empty() => {
            Err(user_error("--symbol, --fix and --state apply to .onnx files only, not to a model in a daemon"))
        }
        (url, false) => {
            let url = url.as_deref().unwrap_or(URL_DEFAULT);
            Ok(Invoker::Remote(Remote::connect(url, &args.model, &args.credentials)?))
        }
    }
}

/// The generated tokens, and the duration of each step.
fn generate(args: &Args, invoker: &Invoker) -> Result<(Vec<i64>, Vec<Duration>)> {
    if let Invoker::Remote(remote) = invoker
        && remote.generates()
    {
        return ask(args, remote, invoker.inputs());
    }
    let metadata = invoker.inputs();
    let others: Vec<TensorMetadata> =
        metadata.iter().filter(|input| !MADE.contains(&input.name.as_str())).cloned().collect();
    if others.len() == metadata.len() {
        return Err(user_error(
            "the model is not a token decoder: it has none of the inputs `input_ids`, `attention_mask`, `position_ids`",
        ));
    }
    let others = args.inputs.tensors(&others)?;
    let mut sequence = invoker.sequence()?;
    let (mut tokens, mut times) = (Vec::new(), Vec::new());
    let (mut step, mut past) = (args.tokens.clone(), 0);
    for _ in 0..args.max_new.get() {
        let start = Instant::now();
        let token = next_token(&mut sequence, metadata, &others, &step, past)?;
        times.push(start.elapsed());
        past += step.len();
        step = vec![token];
        tokens.push(token);
        if args.end_token == Some(token) {
            break;
        }
    }
    sequence.end();
    Ok((tokens, times))
}

/// The tokens of a model that the daemon runs token by token, and the time until each.
fn ask(args: &Args, remote: &Remote, inputs: &[TensorMetadata]) -> Result<(Vec<i64>, Vec<Duration>)> {
    if let Some(other) = inputs.iter().find(|input| input.name != "input_ids") {
        return Err(user_error(format!(
            "the model generates in the daemon and also needs the input `{}`, which this command does not send; send \
             the inputs as JSON to /v2/models/{}/generate_stream",
            other.name, args.model
        )));
    }
    if !args.inputs.is_empty() {
        return Err(user_error(
            "the model generates in the daemon and takes the prompt alone, not --input and --shape",
        ));
    }
    let prompt = Prompt { input_ids: &args.tokens, max_tokens: args.max_new.get(), end_token: args.end_token };
    let (mut tokens, mut times, mut start) = (Vec::new(), Vec::new(), Instant::now());
    remote.generate(&prompt, |token| {
        tokens.push(token);
        times.push(start.elapsed());
        start = Instant::now();
    })?;
    Ok((tokens, times))
}

/// Runs a step and returns the token with the largest logit at the last position.
fn next_token(
    sequence: &mut Sequence<'_>,
    metadata: &[TensorMetadata],
    others: &[Tensor],
    step: &[i64],
    past: usize,
) -> Result<i64> {
    let made = |input: &TensorMetadata| -> Result<Tensor> {
        let values: Vec<i64> = match input.name.as_str() {
            "input_ids" => step.to_vec(),
            "attention_mask" => vec![1; past + step.len()],
            "position_ids" => (past as i64..).take(step.len()).collect(),
            name => {
                return others
                    .iter()
                    .find(|other| other.name == name)
                    .cloned()
                    .with_context(|| format!("input {name}"));
            }
        };
        integers(input, &values)
    };
    let inputs: Vec<Tensor> = metadata.iter().map(made).collect::<Result<_>>()?;
    let answer = sequence.step(&inputs, Terms::default())?;
    let logits = answer.outputs.iter().find(|output| output.name == "logits").or(answer.outputs.first());
    let logits = logits.filter(|logits| logits.shape.len() == 3 && logits.shape[..2] == [1, step.len() as i64]);
    let logits =
        logits.ok_or_else(|| user_error("the model has no output `logits` of shape [1, tokens, vocabulary]"))?;
    let values = to_f64(logits.datatype, &logits.bytes);
    let row = &values[values.len() - logits.shape[2] as usize..];
    let largest = row
        .iter()
        .enumerate()
        .fold((0, f64::NEG_INFINITY), |best, (at, &value)| if value > best.1 { (at, value) } else { best });
    Ok(largest.0 as i64)
}

/// A tensor `[1, n]` of an integer type.
fn integers(input: &TensorMetadata, values: &[i64]) -> Result<Tensor> {
    let bytes = match input.datatype {
        DataType::Int64 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DataType::Int32 => values.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect(),
        other => {
            return Err(user_error(format!("input `{}` has type {other}, but INT64 or INT32 is expected", input.name)));
        }
    };
    Tensor::new(input.name.clone(), input.datatype, vec![1, values.len() as i64], bytes).or_user_error()
}
