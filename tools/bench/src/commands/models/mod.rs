//! `atoll bench models`

mod cases;
mod measure;
mod peer;
mod report;

use crate::failure::user_error;
use crate::output::progress;
use crate::python::{check, python};
use crate::random::Random;
use crate::report::Findings;
use crate::tensors::InputSpecs;
use anyhow::{Result, anyhow};
use atoll_device::cpus;
use atoll_kgraph::{BufferKind, Bundle};
use atoll_protocol::{Tensor, TensorMetadata};
use atoll_server::tensor_metadata;
use cases::{DEFAULTS, Prepared, Sizes, Source, Variant};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Effort, Ours, alternate};
use peer::Peer;
use report::{Failed, Report, Row};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  atoll bench models --against onnxruntime
  atoll bench models resnet50 lstm --against onnxruntime --threads 1 --json
  atoll bench models gpt2 --variant symbolic --size sequence=17 --against onnxruntime
  taskset -c 1 atoll bench models mine.onnx --threads 1 --against onnxruntime";

/// Largest accepted difference from the peer's outputs, relative to the largest element. Beyond it
/// the outputs are wrong and the times meaningless.
const DIFFERENCE_MAX: f64 = 1e-2;

/// Measure whole models on the host device, beside ONNX Runtime with the same number of threads
///
/// Both run alternately, in turns of a few milliseconds, so that disturbances affect both. The
/// report shows the ratio of the medians, of the shortest runs, and of the CPU time of all threads;
/// the last is the most reliable one on a busy machine. Models are built with random weights, or
/// read from .onnx files. The kernel cache is not used.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models to measure: names or .onnx files [default: ten architectures]
    #[arg(value_name = "MODEL")]
    models: Vec<String>,

    /// Peer to measure as well
    #[arg(long, value_enum, value_name = "PEER")]
    against: Option<Against>,

    /// Numbers of threads
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<NonZeroU32>,

    /// Measure only this variant of each model [default: both]
    #[arg(long, value_enum)]
    variant: Option<Variant>,

    /// Value of an open size [default: batch=1, the published sequence length, and 1 for sizes of
    /// files]
    #[arg(long, value_name = "NAME=SIZE", value_parser = size)]
    size: Vec<(String, i64)>,

    /// Maximum number of pairs of turns per model
    #[arg(long, value_name = "COUNT", default_value = "25")]
    pairs: NonZeroU32,

    /// Start no further pair of a model after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = crate::output::parse_seconds)]
    seconds: f64,

    /// Python with onnxruntime and numpy [default: that of $ATOLL_VENV, else python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    Onnxruntime,
}

fn size(text: &str) -> Result<(String, i64), String> {
    let (name, size) = text.split_once('=').ok_or("expected NAME=SIZE")?;
    let size = size.parse().ok().filter(|size| *size > 0).ok_or("expected a size of at least 1")?;
    Ok((name.to_owned(), size))
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let names: Vec<&str> =
        if args.models.is_empty() { DEFAULTS.to_vec() } else { args.models.iter().map(String::as_str).collect() };
    let sources = names.iter().map(|name| Source::find(name)).collect::<Result<Vec<_>>>()?;
    let threads = threads(args)?;
    if args.against.is_some() {
        // Checks for the peer before compiling anything.
        let remedy = "run `make setup`, or choose a Python that has them with --python";
        check(&python(args.python.as_deref()), "numpy, onnxruntime", remedy)?;
    }
    let variants = args.variant.map_or(vec![Variant::Static, Variant::Symbolic], |variant| vec![variant]);
    let bar = progress((names.len() * variants.len() * threads.len()) as u64);
    bar.set_style(ProgressStyle::with_template("[{bar:24}] {pos}/{len} {msg} {elapsed}")?.progress_chars("=> "));
    let mut report = Report::default();
    for (name, source) in names.iter().zip(&sources) {
        for &variant in &variants {
            bar.set_message(format!("{name}, {variant:?}"));
            let outcome = one(args, name, source, variant, &threads, &bar);
            match outcome {
                Ok(rows) => report.rows.extend(rows),
                Err(error) => {
                    report.failed.push(Failed { model: (*name).into(), variant, reason: format!("{error:#}") })
                }
            }
        }
    }
    bar.finish_and_clear();
    report.sum_up();
    let findings = Findings::new(&report, report.text())?;
    Ok(match &report.failed[..] {
        [] => findings,
        [Failed { model, variant, reason }, ..] => {
            let failed = report.failed.len();
            findings.with_failure(anyhow!("{failed} models failed; the first is {model} ({variant:?}): {reason}"))
        }
    })
}

/// The requested numbers of threads that this machine has CPUs for.
fn threads(args: &Args) -> Result<Vec<u32>> {
    let cpus = cpus::allowed().len() as u32;
    let (fitting, others): (Vec<u32>, Vec<u32>) =
        args.threads.iter().map(|threads| threads.get()).partition(|threads| *threads <= cpus);
    for threads in &others {
        writeln!(std::io::stderr(), "note: skipping {threads} threads, since this process may use only {cpus} CPUs")?;
    }
    if fitting.is_empty() {
        Err(user_error(format!("--threads: this process may use only {cpus} CPUs")))
    } else {
        Ok(fitting)
    }
}

/// Measures a variant of a model with all numbers of threads.
fn one(
    args: &Args,
    name: &str,
    source: &Source,
    variant: Variant,
    threads: &[u32],
    bar: &ProgressBar,
) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let sizes: Sizes = args.size.iter().cloned().collect();
    let prepared = source.prepare(variant, &sizes, folder.path())?;
    let mut rows = Vec::new();
    for &threads in threads {
        if let Some(prepared) = &prepared {
            let inputs = inputs(&prepared.bundle, &source.sizes(&prepared.bundle, &sizes))?;
            rows.push(measured(args, name, prepared, inputs, threads, folder.path())?);
        }
        bar.inc(1);
    }
    Ok(rows)
}

/// Random inputs with these values of the symbols.
fn inputs(bundle: &Bundle, sizes: &Sizes) -> Result<Vec<Tensor>> {
    let metadata = tensor_metadata(bundle.graph(), BufferKind::Input);
    let shape = |input: &TensorMetadata| {
        let symbol =
            |dimension: usize| input.symbols.get(dimension).and_then(|name| sizes.get(name)).copied().unwrap_or(1);
        let sizes = input
            .shape
            .iter()
            .enumerate()
            .map(|(dimension, &size)| if size < 0 { symbol(dimension) } else { size }.to_string());
        format!("{}={}", input.name, sizes.collect::<Vec<_>>().join(","))
    };
    // A scalar has no shape to set.
    let shapes: Vec<String> = metadata.iter().filter(|input| !input.shape.is_empty()).map(shape).collect();
    InputSpecs::parse(&[], &shapes, &metadata)?.tensors(&metadata, &mut Random::new(0))
}

fn measured(
    args: &Args,
    name: &str,
    prepared: &Prepared,
    inputs: Vec<Tensor>,
    threads: u32,
    folder: &Path,
) -> Result<Row> {
    let shape = |tensor: &Tensor| {
        format!("{}={}", tensor.name, tensor.shape.iter().map(i64::to_string).collect::<Vec<_>>().join("x"))
    };
    let shape = inputs.iter().map(shape).collect::<Vec<_>>().join(" ");
    let ours = Ours::start(&prepared.bundle, inputs.clone(), threads)?;
    let mut peer =
        args.against.map(|_| Peer::start(&python(args.python.as_deref()), &prepared.file, threads)).transpose()?;
    let difference = peer.as_mut().map(|peer| peer.load(&inputs, &ours.outputs, folder)).transpose()?;
    if let Some(difference) = difference.filter(|difference| difference.is_nan() || *difference > DIFFERENCE_MAX) {
        return Err(anyhow!(
            "its outputs differ from ONNX Runtime's by {difference:.1e}, relative to the largest element"
        ));
    }
    let effort = Effort { pairs: args.pairs.get(), time: Duration::from_secs_f64(args.seconds) };
    let (mine, theirs, pairs) = alternate(&ours, peer.as_mut(), effort)?;
    ours.stop();
    Ok(Row::new(name, prepared, shape, threads, mine, theirs, pairs, difference))
}
