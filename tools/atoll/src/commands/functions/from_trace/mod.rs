//! `atoll fn from-trace`

mod layout;

use crate::commands::compile::{CodeArgs, as_text};
use crate::compiler::ProgressBars;
use crate::engine::EngineArgs;
use crate::failure::{OrUserError, user_error};
use crate::invoker::{Invoker, Local, Terms};
use crate::output::{counted, print};
use crate::symbols::ModelArgs;
use anyhow::{Context, Result, bail};
use atoll_kgraph::DType;
use atoll_pipeline::pack;
use atoll_protocol::Tensor;
use atoll_session::{Function, Pattern, Recording, Role, Run, Steps, limits};
use layout::Layout;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Number of runs that are compared at least: a difference shows an input.
const COMPARED_MIN: usize = 2;

/// Number of runs that the function is executed for at most: the last ones.
const VERIFIED_MAX: usize = 16;

const EXAMPLES: &str = "\
Examples:
  for n in 1 2 3; do atoll trace cuda -o $n.trace -- ./classify image$n; done
  atoll fn from-trace 1.trace 2.trace 3.trace -o classify.kg
  atoll fn deploy classify.kg
  atoll fn from-trace loop.trace -o step.kg                # a program that repeats its work
  atoll fn from-trace *.trace -o sum.kg --type in0=f32 --type out0=f32

All runs but the last are compared. They must do the same work; data that they copy to the device is an input \
if it differs, and a constant otherwise. The function is then executed with the inputs of the last 16 runs, \
one after the other, and must give their results, byte by byte.";

/// Make a bundle (.kg) from recorded runs of a CUDA program that do the same work on different data
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Recordings that `atoll trace cuda` wrote. A file has several runs if its program repeats its
    /// work three times or more
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Bundle to write
    #[arg(short, long, value_name = "OUT.kg")]
    output: PathBuf,

    /// Name of the function [default: the name of the bundle]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Element type of an input or output, as in in0=f32 [default: u8, the bytes that were copied]
    #[arg(long = "type", value_name = "NAME=TYPE", value_parser = typed)]
    types: Vec<(String, DType)>,

    /// Take each file as one run, even if its program repeats its work
    #[arg(long)]
    whole: bool,

    /// Do not execute the function with the inputs of the runs, for instance if the recordings
    /// are from a GPU, whose approximate instructions round differently
    #[arg(long)]
    unverified: bool,

    #[command(flatten)]
    code: CodeArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

fn typed(text: &str) -> Result<(String, DType), String> {
    let (name, dtype) = text.split_once('=').ok_or("expected NAME=TYPE, as in in0=f32")?;
    let dtype = serde_json::from_value::<DType>(dtype.into()).ok().filter(|dtype| *dtype != DType::Strings);
    Ok((name.to_owned(), dtype.ok_or("there is no such type; examples are u8, i32, i64, f16 and f32")?))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let contents = args.files.iter().map(|file| read(file)).collect::<Result<Vec<Vec<u8>>>>()?;
    let sessions = args.files.iter().zip(&contents).map(|(file, bytes)| {
        let steps = Recording::read(bytes).map_err(anyhow::Error::from).and_then(|calls| Ok(Steps::of(calls)?));
        steps.with_context(|| file.display().to_string()).or_user_error()
    });
    let sessions = sessions.collect::<Result<Vec<Steps<'_>>>>()?;
    let runs_of = |session| if args.whole { vec![Run::whole(session)] } else { Run::all(session) };
    let runs: Vec<Run<'_, '_>> = sessions.iter().flat_map(runs_of).collect();
    let (last, compared) = match runs.split_last() {
        Some((last, compared)) if compared.len() >= COMPARED_MIN => (last, compared),
        _ => {
            return Err(user_error(format!(
                "{} recorded, and at least {} are needed: {COMPARED_MIN} are compared, and the last one verifies the \
                 function",
                counted(runs.len(), "run"),
                COMPARED_MIN + 1
            )));
        }
    };
    let pattern = Pattern::of(compared).context("the runs are no function").or_user_error()?;
    let number = runs.len();
    if let Err(why) = pattern.values(last) {
        return Err(user_error(format!("run {number}, the last one, differs from run 1: {why}")));
    }
    if let Some(call) = pattern.constants_after_results().first() {
        tracing::warn!(
            "call {call} of run 1 copies data to the device after results were copied back; it is equal in the \
             compared runs, so it is a constant. If the program computes it from results, the function is wrong"
        );
    }
    let layout = Layout::new(&sessions).or_user_error()?;
    let function = Function::of(&pattern, &|kernel| layout.writes(kernel)).or_user_error()?;

    let beside = args.output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = tempfile::Builder::new().prefix(".from-trace-").tempdir_in(beside);
    let folder = folder.with_context(|| format!("cannot write into {}", beside.display())).or_user_error()?;
    let stem = args.output.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.name.clone().or(stem).unwrap_or_else(|| "function".to_owned());
    let types = args.types.iter().cloned().collect();
    let manifest = layout.write(&function, &name, &types, folder.path()).or_user_error()?;
    let bundle = folder.path().join("function.kg");
    let options = args.code.options_for_ptx()?;
    let bars = ProgressBars::new(&args.output);
    let packed = pack(&manifest, &bundle, &options, &bars);
    bars.finish();
    let report = packed.context("the runs are no function").or_user_error()?;
    if !args.unverified {
        verify(&bundle, &args.engine, &pattern, &runs)?;
    }
    std::fs::rename(&bundle, &args.output)
        .with_context(|| format!("cannot write {}", args.output.display()))
        .or_user_error()?;
    let count = |role| function.buffers.iter().filter(|buffer| buffer.role == role).count();
    let verified = if args.unverified { "not verified" } else { "the last one gives the same results" };
    let text = format!(
        "{}, {verified}; {} and {}\n{}",
        counted(number, "run"),
        counted(count(Role::Input), "input"),
        counted(count(Role::Output), "output"),
        as_text(&report, &args.output)
    );
    Ok(print(&text)?)
}

/// Reads a file of limited size.
fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = limits::RECORDING_BYTES_MAX;
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    read.with_context(|| path.display().to_string()).or_user_error()?;
    if bytes.len() as u64 > most {
        return Err(user_error(format!("{}: a recording has at most {most} bytes", path.display())));
    }
    Ok(bytes)
}

/// Executes the function with the inputs of runs, and compares its outputs with theirs. The
/// invocations follow each other in one engine: memory that the function does not write has the
/// contents of the one before.
fn verify(bundle: &Path, engine: &EngineArgs, pattern: &Pattern<'_, '_>, runs: &[Run<'_, '_>]) -> Result<()> {
    let local = Local::start(bundle, &ModelArgs::default(), engine).context("cannot verify the function")?;
    let invoker = Invoker::Local(local);
    let skipped = runs.len().saturating_sub(VERIFIED_MAX);
    let mut verified = runs.iter().enumerate().skip(skipped);
    let result = verified.try_for_each(|(index, run)| verify_run(&invoker, pattern, run, index + 1));
    invoker.stop();
    result
}

fn verify_run(invoker: &Invoker, pattern: &Pattern<'_, '_>, run: &Run<'_, '_>, number: usize) -> Result<()> {
    let values = pattern.values(run).map_err(anyhow::Error::msg)?;
    let inputs = invoker.inputs().iter().zip(&values.inputs);
    let inputs = inputs.map(|(input, bytes)| {
        Ok(Tensor::new(input.name.clone(), input.datatype, input.shape.clone(), bytes.to_vec())?)
    });
    let inputs = inputs.collect::<Result<Vec<Tensor>>>()?;
    let answer = invoker.invoke(&inputs, Terms::default());
    let answer = answer.with_context(|| format!("cannot execute the function with the inputs of run {number}"))?;
    if (inputs.len(), answer.outputs.len()) != (values.inputs.len(), values.outputs.len()) {
        bail!("the function has other inputs or outputs than the runs");
    }
    for (output, expected) in answer.outputs.iter().zip(&values.outputs) {
        if let Some(at) = output.bytes.iter().zip(*expected).position(|(found, expected)| found != expected) {
            bail!(
                "with the inputs of run {number} the function has another result than the program: {} differs at byte \
                 {at}. The program may depend on an earlier repetition (try --whole) or on data in memory that it did \
                 not write; a GPU may round differently than the device of the verification (--unverified)",
                output.name
            );
        }
    }
    Ok(())
}
