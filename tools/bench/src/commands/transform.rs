//! `atoll bench transform`

use super::model_file;
use crate::engine::EngineArgs;
use crate::invoker::{Invoker, Local, Terms};
use crate::output::{Align, Table, milliseconds};
use crate::random::Random;
use crate::report::Findings;
use crate::samples::Distribution;
use crate::symbols::ModelArgs;
use crate::tensors::InputSpecs;
use anyhow::{Context, Result};
use atoll_pipeline::{CompileOptions, Silent, Target, TransformOptions, compile};
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  atoll bench transform
  atoll bench transform resnet50.onnx bert.onnx --rounds 50 --json";

/// Measure the cost of the preemption passes on this device: each model with and without them, in
/// pairs
///
/// The two variants are invoked alternately, and each pair gives a ratio, so that disturbances
/// affect both.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models, as files or by the names in `atoll-models --list` [default: resnet18 and distilbert]
    #[arg(value_name = "MODEL.onnx|NAME")]
    models: Vec<String>,

    /// Number of pairs per model
    #[arg(long, value_name = "COUNT", default_value_t = NonZeroU32::new(40).expect("not zero"))]
    rounds: NonZeroU32,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Results for a model.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    plain: Distribution,
    transformed: Distribution,
    /// Time of transformed over plain, by pairs: 25th, 50th and 75th percentile.
    ratio: [f64; 3],
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let names = if args.models.is_empty() { vec!["resnet18".into(), "distilbert".into()] } else { args.models.clone() };
    let rows: Vec<Row> = names.iter().map(|name| measure(args, name)).collect::<Result<_>>()?;
    let mut table = Table::new([
        ("model", Align::Left),
        ("plain p50 ms", Align::Right),
        ("transformed p50 ms", Align::Right),
        ("ratio p25", Align::Right),
        ("p50", Align::Right),
        ("p75", Align::Right),
    ]);
    for row in &rows {
        let [low, middle, high] = row.ratio.map(|r| format!("{r:.4}"));
        let [plain, transformed] = [row.plain.p50_ms, row.transformed.p50_ms].map(|ms| format!("{ms:.3}"));
        table.row([row.model.clone(), plain, transformed, low, middle, high]);
    }
    Findings::new(&rows, table)
}

fn measure(args: &Args, name: &str) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let model = model_file(name, folder.path(), false)?;
    let [plain, transformed] =
        [TransformOptions::NONE, TransformOptions::default()].map(|passes| start(args, &model, folder.path(), passes));
    let (plain, transformed) = (plain?, transformed?);
    let inputs = InputSpecs::default().tensors(plain.inputs(), &mut Random::new(0))?;
    let ask = |invoker: &Invoker| -> Result<Duration> {
        let start = Instant::now();
        invoker.invoke(&inputs, Terms::default())?;
        Ok(start.elapsed())
    };
    let mut times: [Vec<Duration>; 2] = Default::default();
    let mut ratios = Vec::new();
    for round in 0..=args.rounds.get() {
        // The order alternates, so that neither variant always finds warm caches.
        let (a, b) = if round % 2 == 0 {
            let a = ask(&plain)?;
            (a, ask(&transformed)?)
        } else {
            let b = ask(&transformed)?;
            (ask(&plain)?, b)
        };
        if round > 0 {
            times[0].push(a);
            times[1].push(b);
            ratios.push(milliseconds(b) / milliseconds(a));
        }
    }
    plain.stop();
    transformed.stop();
    ratios.sort_by(f64::total_cmp);
    let ratio = [0.25, 0.5, 0.75].map(|q| ratios[((ratios.len() - 1) as f64 * q) as usize]);
    Ok(Row {
        model: name.to_owned(),
        plain: Distribution::of(&times[0]),
        transformed: Distribution::of(&times[1]),
        ratio,
    })
}

fn start(args: &Args, model: &Path, folder: &Path, passes: TransformOptions) -> Result<Invoker> {
    let bundle = folder.join(if passes.inject_preempt_flag { "transformed.kg" } else { "plain.kg" });
    let options = CompileOptions { targets: vec![Target::this_host()], passes, ..CompileOptions::default() };
    compile(model, &bundle, &options, &Silent).with_context(|| format!("cannot compile {}", model.display()))?;
    Ok(Invoker::Local(Local::start(&bundle, &ModelArgs::default(), &args.engine)?))
}
